"""Each error that the facts about the backends name: its words or its shape as it comes, and what it means.

Pure: what a backend says is given to what reads it. `test_contract.py` and the tests of each executor show that it is
read off a socket. Rows stand in the order of the facts: ComfyUI's refusals, their inner types, its run time, Ollama,
the OpenAI-compatible servers.
"""

import json

import pytest

from agent.executors import comfyui_outcome as outcomes
from agent.executors.comfyui_client import Posted
from agent.executors.ollama import OllamaExecutor
from agent.executors.transport import Refused, error_text
from agent.executors.verdicts import Finding, Verdict, look_up
from tests.support.fake_comfyui import TROUBLE
from tests.support.fake_comfyui_nodes import MPS_OOM

RETRY, ROUTE, FAIL = Verdict.RETRY, Verdict.ROUTE, Verdict.FAIL
THEN_ROUTE, THEN_FAIL = Verdict.RETRY_THEN_ROUTE, Verdict.RETRY_THEN_FAIL
DOWN, BUSY, UNKNOWN = Verdict.DOWN, Verdict.BUSY, Verdict.UNKNOWN


# ---- ComfyUI: a prompt that is refused


def posted(status, body):
    text = body if isinstance(body, str) else json.dumps(body)
    return Posted(status, {} if isinstance(body, str) else body, text)


def top(kind, message="", details="", **extra):
    error = {"type": kind, "message": message, "details": details, "extra_info": extra}
    return {"error": error, "node_errors": {}}


CLASS = {"node_id": "2", "node_title": "x"}
OLD_UNKNOWN = "Cannot execute because node X does not exist."
OLD_NO_CLASS = "Cannot execute because a node is missing the class_type property."


@pytest.mark.parametrize(
    ("status", "body", "verdict", "code"),
    [
        (400, top("no_prompt", "No prompt provided", "No prompt provided"), FAIL, "bad_workflow"),
        (400, top("invalid_prompt", OLD_UNKNOWN, "Node ID '#2'"), ROUTE, "node_missing"),
        (400, top("invalid_prompt", OLD_NO_CLASS, "Node ID '#2'"), FAIL, "bad_workflow"),
        (400, top("missing_node_type", "Node 'X' not found.", **CLASS, class_type="X"), ROUTE, "node_missing"),
        (400, top("missing_node_type", "no class_type.", **CLASS, class_type=None), FAIL, "bad_workflow"),
        (400, top("prompt_no_outputs", "Prompt has no outputs"), FAIL, "bad_workflow"),
        # 0.3.64 says nothing more of a cycle
        (400, top("prompt_outputs_failed_validation", "Prompt outputs failed validation"), FAIL, "bad_workflow"),
        (400, top("invalid_prompt_id", "prompt_id must be a valid UUID"), FAIL, "bad_workflow"),
        (400, top("a_type_of_next_year", "odd"), UNKNOWN, "unknown_error"),
        (500, TROUBLE, FAIL, "refused"),
        (413, "Maximum request body size 104857600 exceeded", FAIL, "bad_workflow"),
        (403, "", ROUTE, "not_allowed"),
        (401, "Unauthorized", ROUTE, "not_allowed"),
    ],
)
def test_what_a_refusal_of_comfyui_means(status, body, verdict, code):
    fault = outcomes.refusal(posted(status, body))
    assert fault.finding == Finding(verdict, code)
    assert fault.status == status


def test_an_accepted_prompt_is_no_refusal():
    assert outcomes.refusal(posted(200, {"prompt_id": "x", "number": 1, "node_errors": {}})) is None


def inner(kind, message="", details="", **extra):
    errors = [{"type": kind, "message": message, "details": details, "extra_info": extra}]
    return {"1": {"class_type": "SomeNode", "dependent_outputs": ["7"], "errors": errors}}


def not_in_list(name, value="x", listed="['a', 'b']"):
    details = f"{name}: {value!r} not in {listed}"
    return inner("value_not_in_list", "Value not in list", details, input_name=name, received_value=value)


FILE_INPUTS = (
    *("ckpt_name", "lora_name", "vae_name", "control_net_name", "unet_name", "clip_name", "clip_name1", "clip_name2"),
    *("model_name", "style_model_name", "gligen_name"),
)


@pytest.mark.parametrize(
    ("errors", "verdict", "code"),
    [
        (inner("required_input_missing", "Required input is missing", "vae", input_name="vae"), FAIL, "bad_workflow"),
        (inner("bad_linked_input", "Bad linked input", "vae", input_name="vae"), FAIL, "bad_workflow"),
        (
            inner("return_type_mismatch", "x", "vae, received_type(CLIP) mismatch input_type(VAE)", input_name="vae"),
            FAIL,
            "bad_workflow",
        ),
        (inner("invalid_input_type", "x", "steps, abc, invalid literal", input_name="steps"), FAIL, "bad_workflow"),
        (inner("value_smaller_than_min", "Value 0 smaller than min of 1", input_name="s"), FAIL, "bad_workflow"),
        (inner("value_bigger_than_max", "Value 20000 bigger than max", input_name="s"), FAIL, "bad_workflow"),
        *((not_in_list(name), ROUTE, "file_missing") for name in FILE_INPUTS),
        (not_in_list("ckpt_name", listed="(list of length 40)"), ROUTE, "file_missing"),
        (not_in_list("sampler_name"), FAIL, "bad_workflow"),
        (not_in_list("scheduler"), FAIL, "bad_workflow"),
        (
            inner("custom_validation_failed", "x", "image - Invalid image file: ref.png", input_name="image"),
            FAIL,
            "input_missing",  # uploaded again once: comfyui._AGAIN
        ),
        (inner("exception_during_validation", "Exception when validating node", "'9'"), FAIL, "bad_workflow"),
        (inner("exception_during_inner_validation", "x", "'9'", input_name="image"), FAIL, "bad_workflow"),
        (inner("dependency_cycle", "Dependency cycle detected", "2 (X) -> 2 (X)"), FAIL, "bad_workflow"),
        (inner("invalid_dynamic_input", "x", "y"), FAIL, "bad_workflow"),
        (inner("a_type_of_next_year", "x", "y"), UNKNOWN, "unknown_error"),
    ],
)
def test_what_an_error_of_a_node_means_in_a_refusal_and_in_a_200(errors, verdict, code):
    body = top("prompt_outputs_failed_validation", "Prompt outputs failed validation") | {"node_errors": errors}
    assert outcomes.refusal(posted(400, body)).finding == Finding(verdict, code)
    accepted = posted(200, {"prompt_id": "x", "number": 12, "node_errors": errors})
    assert outcomes.dropped(accepted, frozenset({"7"})).finding == Finding(verdict, code)
    assert outcomes.dropped(accepted, frozenset({"9"})) is None  # not our output
    assert outcomes.dropped(accepted, frozenset()) is not None  # which output counts was not said: each does


def test_the_fault_that_no_machine_can_heal_decides():
    errors = not_in_list("ckpt_name") | {"3": inner("required_input_missing")["1"]}
    body = top("prompt_outputs_failed_validation") | {"node_errors": errors}
    assert outcomes.refusal(posted(400, body)).finding.verdict is FAIL


# ---- ComfyUI: how a prompt ended


def entry(*messages, status="error", **outputs):
    about = {
        "status_str": status,
        "completed": status == "success",
        "messages": [list(message) for message in messages],
    }
    return {"status": about, "outputs": outputs}


def raised(kind, message):
    about = {"prompt_id": "0b8f", "node_id": "5", "node_type": "KSampler", "executed": [], "timestamp": 1}
    about |= {"exception_type": kind, "exception_message": message, "current_inputs": {"text": ["secret"]}}
    return ("execution_error", about | {"traceback": ["secret"], "current_outputs": []})


@pytest.mark.parametrize(
    ("kind", "message", "verdict", "code"),
    [
        ("RuntimeError", MPS_OOM, THEN_ROUTE, "out_of_memory"),
        (
            "RuntimeError",
            "MPS backend out of memory (17.9 GiB), shared pool",
            THEN_ROUTE,
            "out_of_memory",
        ),
        ("torch.OutOfMemoryError", "Allocation on device\nTIPS: buy more", THEN_ROUTE, "out_of_memory"),
        ("torch.cuda.OutOfMemoryError", "Allocation on device", THEN_ROUTE, "out_of_memory"),
        ("RuntimeError", "CUDA error: out of memory", THEN_ROUTE, "out_of_memory"),
        ("RuntimeError", "Insufficient Memory (00000008:kIOGPUCommandBuffer...)", THEN_ROUTE, "out_of_memory"),
        ("RuntimeError", "Invalid buffer size: 20.00 GiB", THEN_ROUTE, "out_of_memory"),
        ("RuntimeError", "mat1 and mat2 shapes cannot be multiplied (77x2048 and 768x320)", FAIL, "graph_error"),
        ("ValueError", "not enough values to unpack", FAIL, "graph_error"),
        ("KeyError", "'samples'", FAIL, "graph_error"),
        ("TypeError", "'NoneType' object is not subscriptable", FAIL, "graph_error"),
        ("FileNotFoundError", "[Errno 2] No such file or directory: 'x'", ROUTE, "model_broken"),
        ("safetensors_rust.SafetensorError", "Error while deserializing header: HeaderTooLarge", ROUTE, "model_broken"),
        ("OSError", "[Errno 28] No space left", ROUTE, "disk_full"),
        ("OSError", "No space left on device", ROUTE, "disk_full"),
        ("graph.DependencyCycleError", "Dependency cycle detected", FAIL, "bad_workflow"),
        ("PIL.UnidentifiedImageError", "cannot identify image file 'x'", FAIL, "bad_input"),
        ("RuntimeError", "the moon is in the wrong house", UNKNOWN, "unknown_error"),
    ],
)
@pytest.mark.parametrize("status", ["error", "success"])  # a failure while a node is staged leaves it at success
def test_what_an_error_at_run_time_means(kind, message, verdict, code, status):
    fault = outcomes.ending(entry(("execution_start", {}), raised(kind, message), status=status))
    assert fault.finding == Finding(verdict, code)
    assert "secret" not in fault.text


INTERRUPTED = ("execution_interrupted", {"node_id": "5", "node_type": "KSampler", "executed": []})


@pytest.mark.parametrize(
    ("given", "verdict", "code"),
    [
        (entry(("execution_start", {}), INTERRUPTED), RETRY, "interrupted"),
        (entry(), UNKNOWN, "unknown_error"),
        ({}, UNKNOWN, "unknown_error"),
        (entry(("execution_paused", {})), UNKNOWN, "unknown_error"),
        (entry(["odd"]), UNKNOWN, "unknown_error"),
    ],
)
def test_what_another_end_means(given, verdict, code):
    assert outcomes.ending(given).finding == Finding(verdict, code)


def test_a_good_end_without_the_wanted_output_is_the_workflows_fault():
    ended = entry(("execution_start", {}), ("execution_success", {}), status="success")
    assert outcomes.ending(ended) is None
    assert outcomes.images(ended, frozenset({"7"})) == []
    assert outcomes.fault_of("output_missing: it ended well").finding == Finding(FAIL, "bad_workflow")


# ---- Ollama


@pytest.mark.parametrize(
    ("status", "text", "verdict", "code"),
    [
        *(
            (400, text, FAIL, "bad_request")
            for text in (
                "missing request body",
                "invalid character 'x' looking for beginning of value",
                "model is required",
                "invalid model name",
                'option "num_ctx" must be of type integer',
                "top_logprobs must be between 0 and 20",
            )
        ),
        *(
            (400, f'"nomic-embed-text" does not support {ability}', FAIL, "not_capable")
            for ability in ("chat", "generate", "thinking", "tools", "vision", "insert")
        ),
        (400, "the input length exceeds the context length", FAIL, "prompt_too_long"),
        (401, "unauthorized", ROUTE, "not_allowed"),
        (403, "cloud is disabled", ROUTE, "not_allowed"),
        (502, "upstream", ROUTE, "cloud_model"),
        (404, "model 'mixtral:8x22b' not found", ROUTE, "model_missing"),
        (404, 'model "mixtral:8x22b" not found, try pulling it first', ROUTE, "model_missing"),
        (499, "request canceled", RETRY, "interrupted"),
        (503, "server busy, please try again.  maximum pending requests exceeded", BUSY, "busy"),
        (503, "some other way to say it", BUSY, "busy"),
        (429, "too many requests", BUSY, "busy"),
        (
            500,
            "model requires more system memory (3.4 GiB) than is available (3.0 GiB)",
            THEN_ROUTE,
            "out_of_memory",
        ),
        (500, "llama runner process has terminated: exit status 2", THEN_ROUTE, "runner_died"),
        (500, "llama-server process has terminated: signal: killed", THEN_ROUTE, "runner_died"),
        (500, "llama runner process has terminated: cudaMalloc failed: out of memory", THEN_ROUTE, "out_of_memory"),
        (500, "timed out waiting for llama-server to start", THEN_ROUTE, "runner_died"),
        (500, "llama-server process no longer running", THEN_ROUTE, "runner_died"),
        (
            500,
            "model runner has unexpectedly stopped, this may be due to resource limitations or an internal error",
            THEN_ROUTE,
            "out_of_memory",
        ),
        (500, "no slots available after 10 retries", RETRY, "busy"),
        (500, "error loading model /models/blobs/sha256-x", ROUTE, "model_broken"),
        (500, "llama runner process has terminated: unsupported model architecture", ROUTE, "model_broken"),
        (500, "unable to load model: /models/x", ROUTE, "model_broken"),
        (500, "write /x: no space left on device", ROUTE, "disk_full"),
        (500, "something that nobody has seen", UNKNOWN, "unknown_error"),
        (None, "an error was encountered while running the model: unexpected EOF", THEN_ROUTE, "cut"),
        (None, "llama runner process has terminated: exit status 2", THEN_ROUTE, "runner_died"),
        (None, "MPS backend out of memory", THEN_ROUTE, "out_of_memory"),
    ],
)
def test_what_ollama_says(status, text, verdict, code):
    words = error_text(json.dumps({"error": text}))
    assert words == text
    assert look_up("ollama", words, status=status) == Finding(verdict, code)


@pytest.mark.parametrize(("need", "found"), [("39.4 TiB", Finding(ROUTE, "too_large")), ("0.1 GiB", None)])
def test_a_model_that_no_memory_of_this_machine_could_hold_goes_elsewhere_at_once(need, found):
    text = f"model requires more system memory ({need}) than is available (0.0 GiB)"
    assert OllamaExecutor.from_settings({}).weigh(Refused(500, text)) == found


# ---- OpenAI-compatible servers

LLAMA, MLX, STUDIO, OLLAMA = "llama.cpp", "mlx", "lmstudio", "ollama"
NONE_LOADED = "No models loaded. Please load a model in the developer page or use the 'lms load' command."
NO_RESOURCES = "Model loading was stopped due to insufficient system resources. (guardrails)"
DEAD = "generation thread died"
METAL_LIMIT = "[metal::malloc] Resource limit (499000) exceeded"


def typed(kind, message, code=None):
    return {"message": message, "type": kind, "code": code}


@pytest.mark.parametrize(
    ("server", "status", "error", "verdict", "code"),
    [
        # llama.cpp
        (LLAMA, 503, typed("unavailable_error", "Loading model", 503), DOWN, "loading"),
        (LLAMA, 401, typed("authentication_error", "Invalid API Key", 401), ROUTE, "not_allowed"),
        (LLAMA, 400, typed("invalid_request_error", "'messages' is required", 400), FAIL, "bad_request"),
        (LLAMA, 404, typed("not_found_error", "File Not Found", 404), ROUTE, "model_missing"),
        (LLAMA, 501, typed("not_supported_error", "no embeddings here", 501), FAIL, "not_capable"),
        (LLAMA, 400, typed("exceed_context_size_error", "too long", 400), ROUTE, "prompt_too_long"),
        (LLAMA, 500, typed("server_error", "Context size has been exceeded.", 500), THEN_ROUTE, "context_full"),
        (LLAMA, 500, typed("server_error", "Failed to parse messages: Missing 'role'", 500), FAIL, "bad_request"),
        (LLAMA, 500, typed("server_error", "image input is not supported", 500), FAIL, "bad_request"),
        (LLAMA, 500, typed("server_error", "odd", 500), THEN_ROUTE, "server_error"),
        (LLAMA, 500, "CUDA out of memory. Tried to allocate 20.00 MiB.", THEN_ROUTE, "out_of_memory"),
        (LLAMA, 429, typed("", "slow down"), BUSY, "busy"),
        (LLAMA, 503, typed("unavailable_error", "odd", 503), BUSY, "busy"),
        (LLAMA, 403, "", ROUTE, "not_allowed"),
        (LLAMA, 418, typed("", "teapot"), UNKNOWN, "unknown_error"),
        # Ollama /v1
        (OLLAMA, 404, typed("not_found_error", "model 'x' not found"), ROUTE, "model_missing"),
        (OLLAMA, 400, typed("invalid_request_error", "invalid model name"), FAIL, "bad_request"),
        (OLLAMA, 500, typed("api_error", "model requires more system memory"), THEN_ROUTE, "out_of_memory"),
        (OLLAMA, 500, typed("api_error", "odd"), THEN_ROUTE, "server_error"),
        # mlx_lm
        (MLX, 400, "max_tokens must be at least 1", FAIL, "bad_request"),
        (MLX, 404, "Got: ConnectError ... locate the files on the Hub", ROUTE, "model_missing"),
        (MLX, 404, "Repo id must be in the form 'repo_name' or 'namespace/repo_name'", ROUTE, "model_missing"),
        (MLX, 404, "'role'", THEN_FAIL, "bad_request"),
        (MLX, 404, DEAD, DOWN, "generation_thread_died"),
        (MLX, 404, METAL_LIMIT, DOWN, "generation_thread_died"),
        # LM Studio
        (STUDIO, 404, typed("invalid_request_error", NONE_LOADED), ROUTE, "model_missing"),
        (STUDIO, 400, typed("invalid_request_error", NONE_LOADED), ROUTE, "model_missing"),
        (STUDIO, 400, typed("invalid_request_error", 'Failed to load model "x".'), ROUTE, "model_missing"),
        (STUDIO, 400, f'Failed to load model "x". Error: {NO_RESOURCES}', THEN_ROUTE, "out_of_memory"),
        (
            STUDIO,
            400,
            typed("", "Model loading aborted due to insufficient system resources."),
            THEN_ROUTE,
            "out_of_memory",
        ),
        (STUDIO, 404, typed("invalid_request_error", "choose one", "model_not_found"), ROUTE, "model_missing"),
        (
            STUDIO,
            400,
            "The model has crashed without additional information.",
            THEN_ROUTE,
            "runner_died",
        ),
        (STUDIO, 400, "Context size has been exceeded", ROUTE, "prompt_too_long"),
        (STUDIO, 200, "Context size has been exceeded", ROUTE, "prompt_too_long"),
        # inside a stream, by its type
        (STUDIO, None, typed("invalid_request_error", "odd"), FAIL, "bad_request"),
        (STUDIO, None, typed("authentication_error", "odd"), ROUTE, "not_allowed"),
        (STUDIO, None, typed("not_found_error", "odd"), ROUTE, "model_missing"),
        (STUDIO, None, typed("unavailable_error", "odd"), BUSY, "busy"),
        (STUDIO, None, typed("api_error", "odd"), THEN_ROUTE, "server_error"),
        (STUDIO, None, typed("odd", "odd"), UNKNOWN, "unknown_error"),
    ],
)
def test_what_an_openai_compatible_server_says(server, status, error, verdict, code):
    words = error_text(json.dumps({"error": error}))
    assert look_up("openai", words, status=status, server=server) == Finding(verdict, code)
