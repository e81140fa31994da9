# task: lab01.pool-blocks
# says: This uses servelab.course.tasks.lab01.accounting
from servelab.course.tasks.lab01.accounting import _pool_blocks

pool_blocks = _pool_blocks
