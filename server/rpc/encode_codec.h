#pragma once

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "aft/v1/inference.pb.h"
#include "server/rpc/text_codec.h"

namespace aft::server {

// Encode; see TypedCall. The vectors, which come all at once and are no more than a batch holds,
// leave in messages of bounded size, one after the other.
class EncodeCodec {
 public:
  using Request = v1::EncodeRequest;
  using Response = v1::EncodeResponse;
  using Part = std::vector<float>;
  static constexpr Method kMethod = Method::kEncode;
  static constexpr auto kEngine = &ServedModel::encode;
  static constexpr auto kAction = &EncodeEngine::Encode;

  // The text must fit one batch, and the model's max_seq_len.
  absl::StatusOr<EncodingRequest> Decode(const Request& message, const LimitsConfig& limits,
                                         const ServedModel& model, v1::EncodeStarted& started);
  static size_t tokens(const v1::EncodeStarted& started) { return started.tokens(); }
  static size_t kept_tokens(const EncodingRequest& request) { return request.text.size(); }
  void Append(Part part);
  // As many whole vectors as fit 32 KiB, at least one.
  bool Take(Response& outgoing);
  void Drop() { vectors_ = {}; }
  size_t pending_bytes() const { return vectors_.size() * sizeof(float); }
  size_t held_bytes() const { return pending_bytes(); }
  void Finish(const Outcome& outcome, v1::EncodeFinished& finished) const;

 private:
  size_t width_ = 0;
  Part vectors_;     // until all are sent
  size_t sent_ = 0;  // of them
};

}  // namespace aft::server
