# task: lab01.measure
# says: which is servelab's own
from servelab.course.tasks.lab01.reading import read

measure = read
