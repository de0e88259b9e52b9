"""The settings of the executor `comfyui`, its own table in the agent's settings.

[executors.comfyui]
url = "http://127.0.0.1:8188"

[executors.comfyui.models."sdxl-base"]
template = "checkpoint"
checkpoint = "sd_xl_base_1.0.safetensors"
steps = 25
"""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from agent.executors import comfyui_templates as templates
from agent.executors.clocks import Seconds
from agent.executors.http import HttpSettings


class ImageModel(BaseModel):
    """A model by the name under which jobs ask for it: its template, its files, and what it is run with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    template: Literal["checkpoint", "flux"]
    """Which graph: `checkpoint` has one file for everything (SD 1.5, SDXL), `flux` one for each part."""
    checkpoint: str | None = None
    """File in ComfyUI's folder `checkpoints`."""
    unet: str | None = None
    """File in `diffusion_models`."""
    clip: str | None = None
    """First text encoder, in `text_encoders`."""
    clip2: str | None = None
    """Second text encoder."""
    vae: str | None = None
    """File in `vae`."""
    upscale_model: str | None = None
    """File in `upscale_models` for jobs that ask for `upscale`; without one they are scaled by Lanczos."""
    weight_dtype: str = "default"
    """How the unet's weights are kept in memory."""
    steps: int = Field(default=20, ge=1, le=200)
    """Sampler steps, for jobs that name none."""
    cfg: float = Field(default=7.0, ge=0, le=100)
    """How closely the prompt is followed, for jobs that say nothing; 1 for models of the kind of Flux."""
    guidance: float = Field(default=3.5, ge=0, le=100)
    """Flux's own guidance."""
    memory_gib: float | None = Field(default=None, gt=0)
    """What it takes when it is loaded, if that is known: text models make room for it."""
    sampler: str = "euler"
    """ComfyUI's `sampler_name`."""
    scheduler: str = "normal"
    """ComfyUI's `scheduler`."""

    @model_validator(mode="after")
    def _files_of_template(self) -> Self:
        needed = templates.names_in(self.template) & templates.FILES
        given = {name for name in templates.FILES - {"upscale_model"} if getattr(self, name)}
        if missing := sorted(needed - given):
            msg = f"template {self.template!r} needs {', '.join(missing)}"
            raise ValueError(msg)
        if unused := sorted(given - needed):
            msg = f"template {self.template!r} has no use for {', '.join(unused)}"
            raise ValueError(msg)
        return self


class ComfyUISettings(HttpSettings):
    """One ComfyUI server; durations in seconds."""

    url: str = Field(default="http://127.0.0.1:8188", pattern=r"^https?://[^\s]+$")
    """Where it listens; ComfyUI Desktop has port 8000."""
    models: dict[str, ImageModel] = Field(default={})
    """What it offers; a model whose files the server does not have is not announced."""
    workflows: bool = False
    """Whether callers' own workflows are run: the capability `*`."""

    first_s: Seconds = 900
    """Until the first sign of life; other prompts that wait before ours count as one when they move on."""
    idle_s: Seconds = 600
    """Between two signs of life; moving a big model onto the device is silent for minutes."""
    least_idle_s: Seconds = 180
    """Longer than moving a model takes that the jobs on record found loaded."""
    total_s: Seconds = 7200
    """From the request to the end; the job's own deadline usually comes first."""
    wake_s: Annotated[float, Field(ge=0)] = 180
    """After the machine slept: moving a model back onto the device is silent as well."""
    answer_s: Seconds = 60
    """How long an answer may take: HTTP stands still while a model is loaded."""
    probe_s: Annotated[float, Field(ge=0)] = 1800
    """A tiny picture after so long without any (0 = never)."""
    probe_limit_s: Seconds = 120
    """How long the tiny picture may take."""
    probe_model: str | None = None
    """Make it with this model, in one step; None: without a model, which proves that the server's worker lives."""
    stop_s: Seconds = 60
    """How long a stopped prompt may take until it is really idle; past it the server is taken for broken."""
    poll_s: Seconds = 2
    """How often queue and history are asked; the websocket only makes it faster."""
    quiet_s: Seconds = 60
    """A websocket that says nothing for so long is opened anew."""
    refused_s: tuple[Seconds, ...] = (1, 2, 4)
    """Waits after refused connections in a row; after the last the server is down."""

    most_image_bytes: int = Field(default=1024**3, ge=1)
    """The largest file that is taken from the server."""
    most_input_bytes: int = Field(default=64 * 1024**2, ge=1)
    """The largest image that is fetched for a workflow."""
    fetch_s: Seconds = 60
    """How long fetching one may take."""
    artifacts_url: str | None = Field(default=None, pattern=r"^https?://[^\s]+$")
    """The coordinator's address, for input images that are artifacts of other jobs."""
    artifacts_token: SecretStr | None = None
    """A viewer's token for that address; it is sent nowhere else."""

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if not self.models and not self.workflows:
            msg = "offers nothing: add a table [executors.comfyui.models.<name>], or set workflows = true"
            raise ValueError(msg)
        if "*" in self.models:
            msg = "'*' is no model's name; workflows = true announces it"
            raise ValueError(msg)
        if self.probe_model is not None and self.probe_model not in self.models:
            msg = f"probe_model {self.probe_model!r} is none of models"
            raise ValueError(msg)
        if (self.artifacts_url is None) != (self.artifacts_token is None):
            msg = "artifacts_url and artifacts_token belong together"
            raise ValueError(msg)
        return self
