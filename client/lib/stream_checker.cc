#include "client/lib/stream_checker.h"

#include "absl/strings/str_cat.h"

namespace aft::client {

std::string StreamChecker::Take(const v1::GenerateResponse& event) {
  if (!event.has_delta()) return TakeEnd(event);
  return TakePart("token", event.delta().first_index(), event.delta().token_ids_size());
}

std::string StreamChecker::Take(const v1::ScoreResponse& event) {
  if (!event.has_chunk()) return TakeEnd(event);
  if (event.chunk().logprobs_size() != event.chunk().token_ids_size()) {
    return "a chunk has not as many log-probabilities as tokens";
  }
  // The first token of a text has no score.
  return TakePart("score", int64_t{event.chunk().first_index()} - 1,
                  event.chunk().token_ids_size());
}

std::string StreamChecker::Take(const v1::EncodeResponse& event) {
  if (event.has_started()) {
    width_ = event.started().width();
    if (width_ == 0) return "the vectors have no width";
  }
  if (!event.has_vectors()) return TakeEnd(event);
  if (width_ == 0) return "Vectors came before Started";
  const int values = event.vectors().values_size();
  if (values % width_ != 0) return "a vector is cut";
  return TakePart("vector", event.vectors().first_index(), values / width_);
}

template <typename Response>
std::string StreamChecker::TakeEnd(const Response& event) {
  if (event.has_started()) {
    if (started_) return "Started came twice";
    started_ = true;
  } else if (event.has_finished()) {
    if (!started_ || finished_) return "Finished came before Started or twice";
    finished_ = true;
  }
  return "";
}

std::string StreamChecker::TakePart(absl::string_view unit, int64_t first, int64_t count) {
  if (!started_ || finished_) return absl::StrCat("a ", unit, " came outside Started and Finished");
  if (count == 0) return "";
  if (first > received_) {
    return absl::StrCat(unit, "s ", received_, " to ", first - 1, " are lost");
  }
  if (first < received_) return absl::StrCat(unit, " ", first, " came twice");
  received_ += static_cast<uint32_t>(count);
  return "";
}

}  // namespace aft::client
