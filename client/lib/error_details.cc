#include "client/lib/error_details.h"

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace aft::client {
namespace {

constexpr absl::string_view kOrigin = "aft.client/origin";
constexpr absl::string_view kRequestId = "aft.client/request-id";
constexpr absl::string_view kReceivedTokens = "aft.client/received-tokens";
constexpr absl::string_view kRetryAfterMs = "aft.client/retry-after-ms";
constexpr absl::string_view kNoRetry = "aft.client/no-retry";
constexpr absl::string_view kUsage = "type.googleapis.com/aft.v1.Usage";
constexpr absl::string_view kTimings = "type.googleapis.com/aft.v1.Timings";

template <typename Number>
std::optional<Number> GetNumber(const absl::Status& status, absl::string_view url) {
  const auto payload = status.GetPayload(url);
  Number number = 0;
  if (!payload || !absl::SimpleAtoi(std::string(*payload), &number)) return std::nullopt;
  return number;
}

template <typename Message>
std::optional<Message> GetMessage(const absl::Status& status, absl::string_view url) {
  const auto payload = status.GetPayload(url);
  Message message;
  if (!payload || !message.ParseFromString(std::string(*payload))) return std::nullopt;
  return message;
}

}  // namespace

void SetErrorDetails(const ErrorDetails& details, absl::Status& status) {
  const auto set = [&status](absl::string_view url, absl::string_view value) {
    status.SetPayload(url, absl::Cord(value));
  };
  set(kOrigin, absl::StrCat(static_cast<int>(details.origin)));
  set(kReceivedTokens, absl::StrCat(details.received_tokens));
  if (!details.request_id.empty()) set(kRequestId, details.request_id);
  if (details.retry_after) set(kRetryAfterMs, absl::StrCat(details.retry_after->count()));
  if (!details.may_retry) set(kNoRetry, "");
  if (details.usage) set(kUsage, details.usage->SerializeAsString());
  if (details.timings) set(kTimings, details.timings->SerializeAsString());
}

absl::Status CallerError(absl::string_view message) {
  absl::Status status = absl::InvalidArgumentError(message);
  SetErrorDetails({.origin = ErrorOrigin::kCaller}, status);
  return status;
}

ErrorDetails GetErrorDetails(const absl::Status& status) {
  ErrorDetails details;
  if (const auto origin = GetNumber<int>(status, kOrigin)) {
    details.origin = static_cast<ErrorOrigin>(*origin);
  }
  if (const auto id = status.GetPayload(kRequestId)) details.request_id = std::string(*id);
  details.received_tokens = GetNumber<uint32_t>(status, kReceivedTokens).value_or(0);
  if (const auto ms = GetNumber<int64_t>(status, kRetryAfterMs)) {
    details.retry_after = std::chrono::milliseconds(*ms);
  }
  details.may_retry = !status.GetPayload(kNoRetry);
  details.usage = GetMessage<v1::Usage>(status, kUsage);
  details.timings = GetMessage<v1::Timings>(status, kTimings);
  return details;
}

std::string TokenCount(uint64_t tokens) {
  return absl::StrCat(tokens, tokens == 1 ? " token" : " tokens");
}

}  // namespace aft::client
