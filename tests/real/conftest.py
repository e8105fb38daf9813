"""What the tests of real parts share."""

from .vllm_server import vllm

__all__ = ["vllm"]
