"""servelab: learn how large language models are made to run fast and cheap, by building it.

Importing the package loads nothing heavy; import the room you need, for example ``servelab.engine``.
"""

__version__ = "0.1.0"
