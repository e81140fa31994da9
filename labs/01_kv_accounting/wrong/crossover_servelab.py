# task: lab01.crossover
# says: which is servelab's own
from servelab.costs import kv_weight_crossover_tokens

crossover = kv_weight_crossover_tokens
