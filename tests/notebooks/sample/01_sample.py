# %% [markdown] id="title" tags=["path55"]
# # A sample
#
# **60 minutes**, difficulty 2 of 5, CPU. What does a chapter look like?

# %% id="set-up" tags=["path55"]
# ruff: noqa: F821
import os

from IPython.display import display

names = "goals quiz predict reveal own_words source machine show PageTableWidget"
for name in names.split():
    globals()[name] = lambda *shown: display({"text/plain": str(shown)}, raw=True)


# %% id="self-test-stand-in" tags=["exercise"]
def check(task, answer):
    ### BEGIN SOLUTION
    ### STUB: try:
    ### STUB:     answer(21)
    ### STUB: except NotImplementedError:
    ### STUB:     print("not done yet")
    print("passed" if answer(21) == 42 else f"double(21) returned {answer(21)}")
    ### END SOLUTION


# %%
goals("01")

# %%
quiz("01.retrieval")

# %% id="double-predict" tags=["path55"]
predict("01.double")

# %%
doubled = 2 * 21

# %% id="double-reveal" tags=["path55"]
doubled = 2 * 21
reveal("01.double", doubled)

# %%
predict("01.edition")

# %%
reveal("01.edition", os.environ.get("SERVELAB_EDITION"))

# %%
source("double")
machine()

# %%
show(PageTableWidget("a trace"))

# %% [markdown]
# ## Deeper: what can be skipped

# %% [markdown]
# ## When does it lose?


# %% id="task-double" tags=["exercise"]
def double(x):
    """Twice x."""
    ### BEGIN SOLUTION 01.double
    return 2 * x
    ### END SOLUTION


# %% id="check-double" tags=["self-test"]
# NBVAL_CHECK_OUTPUT
check("01.double", double)

# %%
quiz("01")

# %% [markdown]
# ## Misconception: twice is a square

# %%
own_words("01.double")

# %%
own_words("01.double")

# %% [markdown]
# ## Summary
#
# ## Sources
#
# ## Next
