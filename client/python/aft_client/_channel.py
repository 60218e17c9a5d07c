"""The connection to the servers."""

from __future__ import annotations

import ipaddress
import json
import re
from typing import Any, List, Optional, Sequence, Tuple, Union

import grpc

from ._types import Tls


def _endpoints(target: str) -> List[str]:
  """The "host:port" of a gRPC target; another text if this client does not know the form of the target."""
  return re.sub(r"^(dns|ipv4|ipv6):(///?)?", "", target).split(",")


def _lacks_port(target: str) -> bool:
  is_host = not target.startswith(("unix:", "unix-abstract:"))
  return is_host and not all("://" in one or re.search(r":[0-9]+$", one) for one in _endpoints(target))


def target_of(addresses: Union[str, Sequence[str]]) -> str:
  """The gRPC target for addresses: "host:port", any gRPC target, or several IP addresses such as "10.0.0.1:8500". The
  port must be given, because gRPC's default, 443, is never the right one."""
  if isinstance(addresses, str):
    addresses = [addresses]
  for address in addresses:
    if _lacks_port(address):
      raise ValueError(f"{address}: the port is missing")
  if len(addresses) == 1:
    return addresses[0]
  kinds = set()
  for address in addresses:
    host = address.rsplit(":", 1)[0].strip("[]")
    try:
      kinds.add(ipaddress.ip_address(host).version)
    except ValueError:
      raise ValueError(f"{address}: several addresses must be numeric; a name for all is dns:///NAME:PORT") from None
  if len(kinds) != 1:
    raise ValueError("several addresses must be all IPv4 or all IPv6")
  return f"ipv{kinds.pop()}:" + ",".join(addresses)


def is_loopback(target: str) -> bool:
  """Whether all servers of a gRPC target are on this machine, as client/lib/address.cc has it."""
  if target.startswith(("unix:", "unix-abstract:")):
    return True
  return all(re.fullmatch(r"(localhost|\[::1\]|127\.[0-9.]*)(:[^:]*)?", one) for one in _endpoints(target))


def service_config(max_attempts: int, watch_health: bool = True) -> str:
  """gRPC's service config: balancing, watching health and retries. CANCELLED is included because gRPC's core returns
  it if a call meets the GOAWAY of a draining server. The methods are those of MakeServiceConfig of the C++ client, which
  says why two are missing."""
  method: dict[str, Any] = {
      "name": [
          {"service": "aft.v1.InferenceService"}, {"service": "aft.v1.ModelService"},
          {"service": "aft.v1.StateService", "method": "Export"},
          {"service": "aft.v1.StateService", "method": "Get"},
          {"service": "aft.v1.StateService", "method": "List"},
          {"service": "inference.GRPCInferenceService", "method": "ModelInfer"},
          {"service": "inference.GRPCInferenceService", "method": "ModelMetadata"},
          {"service": "inference.GRPCInferenceService", "method": "ModelStatistics"},
          {"service": "inference.GRPCInferenceService", "method": "RepositoryIndex"},
      ],
  }
  if max_attempts > 1:
    method["retryPolicy"] = {
        "maxAttempts": min(max_attempts, 5), "initialBackoff": "0.1s", "maxBackoff": "2s", "backoffMultiplier": 2,
        "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "CANCELLED"],
    }
  return json.dumps({
      "loadBalancingConfig": [{"round_robin": {}}],
      **({"healthCheckConfig": {"serviceName": ""}} if watch_health else {}),
      "methodConfig": [method],
  })


def open_channel(module: Any, target: str, tls: Optional[Tls], max_attempts: int, options: Sequence[Tuple[str, Any]],
                 watch_health: bool = True) -> Any:
  """Opens a channel of `module`, which is grpc or grpc.aio. `options` win over the options that are set here."""
  defaults: List[Tuple[str, Any]] = [
      ("grpc.service_config", service_config(max_attempts, watch_health)),
      ("grpc.min_reconnect_backoff_ms", 5000),  # despite its name, also the limit of one attempt
      ("grpc.initial_reconnect_backoff_ms", 100),
      ("grpc.max_reconnect_backoff_ms", 1000),  # a restarted server is back within seconds
      # The default is 30 s, in which a drained node may replace all servers of a name.
      ("grpc.dns_min_time_between_resolutions_ms", 1000),
      ("grpc.keepalive_time_ms", 20_000),
      ("grpc.keepalive_timeout_ms", 10_000),
      ("grpc.http2.max_pings_without_data", 0),  # also during long waits
      ("grpc.per_rpc_retry_buffer_size", 16 << 20),  # prompts are larger than gRPC's 256 KiB
      # The answer of infer() can be far larger than gRPC's default of 4 MiB, so there is no limit.
      ("grpc.max_receive_message_length", -1),
  ]
  if is_loopback(target):  # a proxy from the environment cannot reach this machine's loopback addresses
    defaults.append(("grpc.enable_http_proxy", 0))
  given = {name for name, _ in options}
  merged = [one for one in defaults if one[0] not in given] + list(options)
  if tls is None:
    return module.insecure_channel(target, merged)
  credentials = grpc.ssl_channel_credentials(tls.authorities, tls.key, tls.certificate)
  return module.secure_channel(target, credentials, merged)
