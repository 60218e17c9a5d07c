#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "inference/grpc_service.pb.h"
#include "server/api/aft/named_options.h"
#include "server/api/oip/answer.h"
#include "server/api/oip/statistics.h"
#include "server/call/exchange.h"

namespace aft::server::oip {

// One request of ModelInfer or ModelStreamInfer. It converts tensors to requests of an engine, and
// the engine's results to tensors: in one response, or in a response for each token if a stream
// asks for it.
class InferExchange final : public Exchange {
 public:
  // This constructor is for ModelInfer.
  explicit InferExchange(Statistics& statistics) : statistics_(statistics) {}
  // This one is for ModelStreamInfer. `unread`: bytes, of all requests, that the client of the
  // stream has not read.
  InferExchange(Statistics& statistics, std::shared_ptr<std::atomic<size_t>> unread)
      : statistics_(statistics), unread_(std::move(unread)) {}
  ~InferExchange() override { Drop(); }

  // `decoupled` is called, before the request is decoded, if its model is decoupled: Triton answers
  // requests to all other models in their order. Only streams call this, before the call starts.
  void OnDecoupled(std::function<void()> decoupled) { decoupled_ = std::move(decoupled); }
  // Makes outgoing() the response of a request that has failed. Only streams call this.
  void SetError(const std::string& message);

  Method method() const override {
    return is_stream() ? Method::kModelStreamInfer : Method::kModelInfer;
  }
  bool takes_tensors() const override { return true; }
  bool streams() const override { return streams_; }
  size_t RequestCost(const RequestBytes& bytes) const override;
  void Peek(const RequestBytes& bytes) override;
  google::protobuf::Message& request() override { return *request_; }
  ModelName model_name() const override {
    return {"model_name", request_->model_name(), "model_version", request_->model_version()};
  }
  absl::Status CheckRequest() override;
  absl::StatusOr<DecodedRequest> Decode(const ServedModel& model,
                                        const LimitsConfig& limits) override;
  absl::Status InOwnNames(const absl::Status& status) const override;
  void Prepare() override;

  void Append(TokenDelta delta, uint32_t sequence) override;
  void Append(std::vector<float> vectors, uint32_t sequence) override;
  bool Take(std::string& state) override;
  void Drop() override;
  size_t pending_bytes() const override;
  size_t held_bytes() const override;
  absl::string_view too_much() const override;

  const google::protobuf::MessageLite& outgoing() override;
  bool Finish(const Outcome& outcome, const v1::State* stored) override;
  size_t last_message_bytes() const override;
  void Record(const ServedModel& model, const absl::Status& status,
              const Timings& timings) override {
    statistics_.Record(model, status, timings);
  }

 private:
  // The content of a response that waits: a token, or several tokens if the client is far behind.
  struct Part {
    TokenDelta token;
    size_t bytes = 0;  // on the wire, about
  };

  bool is_stream() const { return unread_ != nullptr; }
  // Begins an empty response to this request.
  inference::ModelInferResponse& Begin(bool final);

  Statistics& statistics_;
  const std::shared_ptr<std::atomic<size_t>> unread_;  // null for ModelInfer
  std::function<void()> decoupled_;                    // null for ModelInfer
  std::unique_ptr<inference::ModelInferRequest> request_ =
      std::make_unique<inference::ModelInferRequest>();
  std::string id_;  // the id that the request has
  std::string model_;
  std::string version_;
  const char* text_ = "";      // the name of the tensor with a generation's prompt
  GenerationOptions options_;  // of a generation, without their values
  bool streams_ = false;       // there is a response for each token
  bool empty_final_ = false;   // the last response is sent even if it is empty
  std::unique_ptr<Answer> answer_;
  std::deque<Part> parts_;
  size_t part_bytes_ = 0;            // sum over all parts
  std::optional<TokenDelta> taken_;  // the next outgoing() is made from it
  std::optional<Outcome> finished_;  // the next outgoing() is made from it
  inference::ModelStreamInferResponse response_;
};

}  // namespace aft::server::oip
