#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <variant>

#include "server/api/openai/open_calls.h"
#include "server/call/call.h"
#include "server/config/config.h"
#include "server/http/http_handler.h"
#include "server/transport/client_identity.h"

namespace aft::server::openai {

// OpenAI's HTTP API with vLLM's extensions. It serves requests with the same class Call as gRPC:
//
//   POST /v1/completions /v1/chat/completions /v1/responses /v1/embeddings /classify
//        /tokenize /detokenize
//   GET  / /v1/models /v1/models/NAME /v1/responses/ID /health /version
//   DELETE /v1/responses/ID
//
// A page in a browser may call it only from one of `http.allow_origins`. The header Host must be
// localhost, an IP address or one of `http.allowed_hosts`, so that a page cannot reach the server
// through a host name of its own (DNS rebinding). Only the server's thread calls it, except where a
// comment says otherwise.
class Door final : public HttpHandler {
 public:
  // The references must outlive this object.
  Door(const HttpConfig& config, InferenceEnvironment& environment, const ClientIdentity& identity,
       std::string version)
      : config_(config),
        environment_(environment),
        identity_(identity),
        version_(std::move(version)) {}

  std::variant<HttpPage, std::shared_ptr<HttpTask>> Handle(const HttpRequest& request) override;
  std::optional<HttpPage> HeadRefused(int status, const std::string& peer) override;

  // Sets whether /health says that requests are served. Any thread may call it.
  void SetReady(bool ready) { ready_ = ready; }
  // New requests get 503 from now on. Any thread may call it.
  void BeginDrain() { draining_ = true; }
  OpenCalls& calls() { return calls_; }

 private:
  using Headers = std::map<std::string, std::string>;

  absl::Status CheckOrigin(const HttpRequest& request, Headers& headers) const;
  absl::Status CheckHost(const HttpRequest& request) const;
  HttpPage Models(const Client& client, const std::string& name) const;

  const HttpConfig config_;
  InferenceEnvironment& environment_;
  const ClientIdentity& identity_;
  const std::string version_;
  std::atomic<bool> ready_{false};
  std::atomic<bool> draining_{false};
  OpenCalls calls_;
};

}  // namespace aft::server::openai
