# task: lab02.waste
# says: which is servelab's own
from servelab.course.tasks.lab02.waste import measured

measure = measured
