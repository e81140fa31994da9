"""Prometheus' numbers under vLLM's names: they count what was served."""


def test_they_count_what_was_served(server):
    before = server.numbers()
    assert before["vllm:generation_tokens_total"] == 0
    server.post(prompt="Hello, hello", ignore_eos=True)
    server.post(prompt="Hello, hello", ignore_eos=True, n=2)
    server.wait_until_idle()
    after = server.numbers()
    assert after["vllm:generation_tokens_total"] == 24
    assert after["vllm:prompt_tokens_total"] == after["vllm:prefix_cache_queries_total"] == 24
    assert after["vllm:prefix_cache_hits_total"] == 8  # two blocks of 4; of the third one token is computed
    assert after["vllm:request_success_totallength"] == 3
    assert after["vllm:request_success_totalerror"] == 0
    assert after["vllm:num_requests_running"] == after["vllm:num_requests_waiting"] == 0
    assert after["vllm:kv_cache_usage_perc"] == 0
    assert after["vllm:time_to_first_token_seconds_count"] == 3
    assert after["vllm:inter_token_latency_seconds_count"] == 21
    assert after["vllm:e2e_request_latency_seconds_count"] == 3


def test_a_draft_is_counted(serve):
    from servelab.speculative import NGram

    server = serve({"speculative": NGram(k=3)})
    server.post(prompt="abcabcabcabc", max_tokens=30, ignore_eos=True)
    server.wait_until_idle()
    found, metrics = server.numbers(), server.engine.speculation
    assert metrics.drafted > 0
    assert found["vllm:spec_decode_num_draft_tokens_total"] == metrics.drafted
    assert found["vllm:spec_decode_num_accepted_tokens_total"] == metrics.accepted
    assert found["vllm:spec_decode_num_drafts_total"] == metrics.drafted_at[0]
