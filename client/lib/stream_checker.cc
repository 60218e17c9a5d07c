#include "client/lib/stream_checker.h"

#include "absl/strings/str_cat.h"

namespace aft::client {

std::string StreamChecker::Take(const v1::GenerateResponse& event) {
  switch (event.event_case()) {
    case v1::GenerateResponse::kStarted:
      return TakeStarted();
    case v1::GenerateResponse::kDelta:
      return TakePart("token", event.delta().first_index(), event.delta().token_ids_size());
    case v1::GenerateResponse::kFinished:
      return TakeFinished();
    case v1::GenerateResponse::EVENT_NOT_SET:
      break;
  }
  return "";
}

std::string StreamChecker::Take(const v1::ScoreResponse& event) {
  switch (event.event_case()) {
    case v1::ScoreResponse::kStarted:
      return TakeStarted();
    case v1::ScoreResponse::kChunk:
      if (event.chunk().logprobs_size() != event.chunk().token_ids_size()) {
        return "a chunk has not as many log-probabilities as tokens";
      }
      // The first token of a text has no score.
      return TakePart("score", int64_t{event.chunk().first_index()} - 1,
                      event.chunk().token_ids_size());
    case v1::ScoreResponse::kFinished:
      return TakeFinished();
    case v1::ScoreResponse::EVENT_NOT_SET:
      break;
  }
  return "";
}

std::string StreamChecker::Take(const v1::EncodeResponse& event) {
  switch (event.event_case()) {
    case v1::EncodeResponse::kStarted:
      width_ = event.started().width();
      return width_ == 0 ? "the vectors have no width" : TakeStarted();
    case v1::EncodeResponse::kVectors: {
      const int values = event.vectors().values_size();
      if (width_ == 0) return "Vectors came before Started";
      if (values % static_cast<int64_t>(width_) != 0) return "a vector is cut";
      return TakePart("vector", event.vectors().first_index(),
                      values / static_cast<int64_t>(width_));
    }
    case v1::EncodeResponse::kFinished:
      return TakeFinished();
    case v1::EncodeResponse::EVENT_NOT_SET:
      break;
  }
  return "";
}

std::string StreamChecker::TakeStarted() {
  if (started_) return "Started came twice";
  started_ = true;
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

std::string StreamChecker::TakeFinished() {
  if (!started_ || finished_) return "Finished came before Started or twice";
  finished_ = true;
  return "";
}

}  // namespace aft::client
