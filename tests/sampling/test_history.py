"""`TokenHistory`: what a position behind draft tokens sees."""

from servelab.sampling import TokenHistory


def test_draft_tokens_join_the_output():
    output = [3]
    history = TokenHistory([1, 2], output)
    behind = history.after([4, 5])
    assert (behind.prompt_token_ids, behind.output_token_ids) == ([1, 2], [3, 4, 5])
    assert history.output_token_ids is output, "a history is a view of the request's own lists"
    assert output == [3]
    assert TokenHistory((1,), (2,)).after((3,)) == TokenHistory((1,), [2, 3])
