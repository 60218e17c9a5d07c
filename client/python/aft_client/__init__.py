"""Client of AFT Serve: generation, scoring and encoding with attention-free transformers.

  with Client("127.0.0.1:8500") as client:
    for event in client.generate("It is a truth"):
      if isinstance(event, Delta):
        print(event.text, end="", flush=True)
"""

from ._async_client import AsyncClient, AsyncGeneration
from ._client import Client
from ._errors import AftError
from ._generation import Generation, Output
from ._models import (BatchStatistics, ChatFormat, Health, Inference, Model, ModelLoad, ModelMetadata, ModelState,
                      ModelStatistics, ModelVersion, Parameter, RepositoryModel, Task, Tensor, TensorMetadata, Timing)
from ._resumable import Resumed
from ._types import (Answer, CacheMiss, Completion, Delta, Event, Finished, FinishReason, Pooling, Priority,
                     PromptScores, Sampling, Scores, Started, State, Text, Timings, Tls, TokenLogprobs, Tokens, Usage,
                     Vectors)

__all__ = [
    "AftError", "Answer", "AsyncClient", "AsyncGeneration", "BatchStatistics", "CacheMiss", "ChatFormat", "Client",
    "Completion", "Delta", "Event", "FinishReason", "Finished", "Generation", "Health", "Inference", "Model",
    "ModelLoad", "ModelMetadata", "ModelState", "ModelStatistics", "ModelVersion", "Output", "Parameter", "Pooling",
    "Priority", "PromptScores", "RepositoryModel", "Resumed", "Sampling", "Scores", "Started", "State", "Task",
    "Tensor", "TensorMetadata", "Text", "Timing", "Timings", "Tls", "TokenLogprobs", "Tokens", "Usage", "Vectors"
]
