#include "server/api/oip/infer_exchange.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "server/api/oip/model_tensors.h"
#include "server/api/oip/request.h"
#include "server/config/checks.h"
#include "server/transport/message_bytes.h"

namespace aft::server::oip {
namespace {

// Field numbers of ModelInferRequest.
constexpr int kIdField = 3;
constexpr int kRawField = 7;  // raw_input_contents
constexpr size_t kMaxIdBytes = 256;

// How many bytes of memory a byte of a message can become: itself, a parsed copy, a typed number of
// eight bytes, the same number in a tensor, and a token of four bytes.
constexpr size_t kInferBytesPerRequestByte = 22;

// The most bytes of memory that a byte of raw contents can become. There are three cases: itself, a
// copy and a parsed copy; or a parsed copy, a flag and a float of a mask; or a parsed copy, a copy
// of its text, and a token with as much again while the list of tokens grows.
constexpr size_t kBytesPerRawByte = 10;

// Memory of a request in the engine in addition to its tokens.
constexpr size_t kEngineRequestBytes = 1024;

// An answer is kept, copied to its response, and serialised.
constexpr size_t kAnswerCopies = 3;

// Size of a response without its tensors: names, shapes and parameters.
constexpr size_t kRestOfMessage = size_t{1} << 16;

// Approximate size on the wire of a response without the data of its tensors.
constexpr size_t kPartBytes = 64;

// Bytes in memory for each byte on the wire, because all of these are objects.
constexpr size_t kHeldPerByte = 5;

// Once this number of responses wait, new tokens join the last one. A client that is so far behind
// needs fewer responses.
constexpr size_t kManyParts = 256;

constexpr char kFinalKey[] = "triton_final_response";

}  // namespace

size_t InferExchange::RequestCost(const RequestBytes& bytes) const {
  const size_t raw = std::min(bytes.FieldBytes(kRawField), bytes.size());
  return kInferBytesPerRequestByte * (bytes.size() - raw) + kBytesPerRawByte * raw;
}

// Reads the id without parsing the message, so that a refusal can name the request.
void InferExchange::Peek(const RequestBytes& bytes) {
  std::string id = bytes.PeekStrings(kIdField, kMaxIdBytes).back().value_or("");
  // Clients refuse an answer with a string that is not UTF-8.
  if (ToValidUtf8(id) == id) id_ = std::move(id);
}

absl::Status InferExchange::CheckRequest() {
  id_.clear();
  AFT_RETURN_IF_ERROR(CheckLength("id", request_->id().size(), kMaxIdBytes));
  id_ = request_->id();
  return absl::OkStatus();
}

absl::StatusOr<DecodedRequest> InferExchange::Decode(const ServedModel& model,
                                                     const LimitsConfig& limits) {
  if (decoupled_ && IsDecoupled(model)) decoupled_();
  model_ = model.config.name;
  version_ = model.config.version;
  AFT_ASSIGN_OR_RETURN(
      Inference inference,
      DecodeInference(*request_, limits, model, is_stream() ? Reply::kStream : Reply::kUnary));
  streams_ = inference.streams;
  empty_final_ = inference.empty_final;
  answer_ = std::move(inference.answer);
  if (answer_->most_bytes() > kMaxMessageBytes - kRestOfMessage) {
    return absl::InvalidArgumentError(
        absl::StrCat("outputs: the answer may have ", answer_->most_bytes(),
                     " bytes, and a message has at most ", kMaxMessageBytes));
  }
  text_ = inference.text;
  options_ = std::move(inference.options);
  DecodedRequest decoded;
  if (const auto* const texts = std::get_if<std::vector<EncodingRequest>>(&inference.work)) {
    decoded.sequences = static_cast<uint32_t>(texts->size());
  }
  decoded.work = std::move(inference.work);
  decoded.bytes = inference.tokens * sizeof(TokenId) + inference.tensor_bytes +
                  decoded.sequences * kEngineRequestBytes + kAnswerCopies * answer_->most_bytes();
  decoded.timeout = inference.timeout;
  return decoded;
}

absl::Status InferExchange::InOwnNames(const absl::Status& status) const {
  // Until the request is decoded, a tensor may have a name of these fields.
  if (*text_ == '\0') return status;
  absl::string_view rest = status.message();
  if (!absl::ConsumePrefix(&rest, "prompt: ")) return options_.Rename(status);
  return absl::Status(status.code(), absl::StrCat(text_, ": ", rest));
}

void InferExchange::Prepare() {
  request_.reset();
  answer_->Prepare();
}

void InferExchange::Append(TokenDelta delta, uint32_t /*sequence*/) {
  if (!streams_) return answer_->Collect(std::move(delta));
  size_t bytes = answer_->WireBytes(delta);
  if (bytes == 0) return;
  if (parts_.size() >= kManyParts) {
    Part& last = parts_.back();
    last.token.text += delta.text;
    for (SampledToken& token : delta.tokens) last.token.tokens.push_back(std::move(token));
    last.bytes += bytes;
  } else {
    bytes += kPartBytes;
    parts_.push_back({std::move(delta), bytes});
  }
  part_bytes_ += bytes;
  *unread_ += bytes;
}

void InferExchange::Append(std::vector<float> vectors, uint32_t sequence) {
  answer_->CollectRow(sequence, std::move(vectors));
}

bool InferExchange::Take(std::string& /*state*/) {
  if (parts_.empty()) return false;
  taken_ = std::move(parts_.front().token);
  part_bytes_ -= parts_.front().bytes;
  *unread_ -= parts_.front().bytes;
  parts_.pop_front();
  return true;
}

void InferExchange::Drop() {
  parts_.clear();
  if (unread_ != nullptr) *unread_ -= part_bytes_;
  part_bytes_ = 0;
}

size_t InferExchange::pending_bytes() const {
  return streams_ ? unread_->load() : answer_->held_bytes();
}

size_t InferExchange::held_bytes() const {
  if (answer_ == nullptr) return 0;
  return streams_ ? kHeldPerByte * part_bytes_ : kAnswerCopies * answer_->held_bytes();
}

absl::string_view InferExchange::too_much() const {
  if (streams_) return "slow client: it reads slower than the models write";
  return *text_ == '\0' ? "the answer is longer than limits.max_stream_buffer_bytes; Score of "
                          "aft.v1 streams its scores"
                        : "the answer is longer than limits.max_stream_buffer_bytes; ask for a "
                          "stream of tokens, which may be longer";
}

inference::ModelInferResponse& InferExchange::Begin(bool final) {
  response_.Clear();
  inference::ModelInferResponse& response = *response_.mutable_infer_response();
  response.set_model_name(model_);
  response.set_model_version(version_);
  response.set_id(id_);
  if (is_stream()) (*response.mutable_parameters())[kFinalKey].set_bool_param(final);
  return response;
}

const google::protobuf::MessageLite& InferExchange::outgoing() {
  if (taken_.has_value()) {
    answer_->WriteToken(*taken_, Begin(/*final=*/false));
    taken_.reset();
  } else if (finished_.has_value()) {
    answer_->WriteEnd(*finished_, Begin(/*final=*/true));
    finished_.reset();
  }
  if (is_stream()) return response_;
  return response_.infer_response();
}

bool InferExchange::Finish(const Outcome& outcome, const v1::State* /*stored*/) {
  finished_ = outcome;
  outgoing();
  return !streams_ || empty_final_ || response_.infer_response().outputs_size() > 0;
}

size_t InferExchange::last_message_bytes() const {
  return std::max(answer_->most_bytes(), answer_->held_bytes());
}

void InferExchange::SetError(const std::string& message) {
  taken_.reset();
  finished_.reset();
  response_.Clear();
  inference::ModelInferResponse& response = *response_.mutable_infer_response();
  response.set_id(id_);
  (*response.mutable_parameters())[kFinalKey].set_bool_param(true);
  response_.set_error_message(message);
}

}  // namespace aft::server::oip
