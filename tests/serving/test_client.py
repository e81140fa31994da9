"""The official `openai` client against our server, with no setting but the address."""

import openai
import pytest

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_models(client):
    assert [model.id for model in client.models.list()] == ["toy"]
    assert client.models.retrieve("toy").id == "toy"


def test_a_completion_whole_and_streamed(client):
    options = {"model": "toy", "prompt": "Hello", "max_tokens": 12, "temperature": 0}
    whole = client.completions.create(**options)
    assert whole.usage.completion_tokens == 12
    assert whole.choices[0].finish_reason == "length"
    chunks = list(client.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens == 17


def test_a_chat_whole_and_streamed(client):
    options = {"model": "toy", "messages": MESSAGES, "max_completion_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**options, logprobs=True, top_logprobs=2)
    assert len(whole.choices[0].logprobs.content) == 12
    assert len(whole.choices[0].logprobs.content[0].top_logprobs) == 2
    chunks = list(client.chat.completions.create(**options, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    chunks = list(client.chat.completions.create(**{**options, "n": 2, "temperature": 1, "seed": 3}, stream=True))
    assert {chunk.choices[0].index for chunk in chunks} == {0, 1}


def test_several_answers_with_a_seed(client):
    def texts():
        made = client.completions.create(
            model="toy", prompt="Hello", n=3, seed=5, max_tokens=8, extra_body={"top_k": 20}
        )
        return [choice.text for choice in made.choices]

    assert texts() == texts()
    assert len(set(texts())) > 1


def test_refusals_are_the_clients_own_errors(client, serve):
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model="toy", prompt="x", temperature=9)
    with pytest.raises(openai.NotFoundError, match="expected the model 'toy'"):
        client.completions.create(model="gpt-4", prompt="x")
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    with pytest.raises(openai.BadRequestError, match="tools is not supported"):
        client.chat.completions.create(model="toy", messages=MESSAGES, tools=[tool])
    locked = serve(api_key="secret")
    with pytest.raises(openai.AuthenticationError):
        client.with_options(base_url=f"{locked.url}/v1").models.list()
    assert client.with_options(base_url=f"{locked.url}/v1", api_key="secret").models.list().data


@pytest.mark.anyio
async def test_the_asynchronous_client(server):
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        stream = await client.completions.create(model="toy", prompt="Hello", max_tokens=6, stream=True, temperature=0)
        assert len([chunk async for chunk in stream]) >= 1
