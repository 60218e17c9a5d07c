#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "aft/v1/inference.pb.h"

namespace aft::client {

// Follows one stream of InferenceService and finds what breaks the protocol: the order of Started,
// parts and Finished, and gaps between parts. Thread-compatible.
class StreamChecker {
 public:
  StreamChecker() = default;
  // Of a generation that goes on behind so many tokens.
  explicit StreamChecker(uint32_t received) : received_(received) {}

  // Returns what is wrong with `event`; empty: nothing. An event of a newer server is fine.
  template <typename Response>
  std::string Take(const Response& event) {
    if (std::string broken = TakePart(event); !broken.empty()) return broken;
    if (event.has_started()) {
      if (started_) return "Started came twice";
      started_ = true;
    } else if (event.has_finished()) {
      if (!started_ || finished_) return "Finished came before Started or twice";
      finished_ = true;
    }
    return "";
  }

  bool started() const { return started_; }
  bool finished() const { return finished_; }
  // Tokens, or vectors, that have come.
  uint32_t received() const { return received_; }

 private:
  std::string TakePart(const v1::GenerateResponse& event) {
    if (!event.has_delta()) return "";
    return TakePart("token", event.delta().first_index(), event.delta().token_ids_size());
  }

  std::string TakePart(const v1::ScoreResponse& event) {
    if (!event.has_chunk()) return "";
    const v1::ScoreChunk& chunk = event.chunk();
    if (chunk.logprobs_size() != chunk.token_ids_size()) {
      return "a chunk has not as many log-probabilities as tokens";
    }
    // The first token of a text has a score only where another text comes before.
    if (received_ == 0 && chunk.first_index() == 0) unscored_ = 0;
    return TakePart("score", int64_t{chunk.first_index()} - unscored_, chunk.token_ids_size());
  }

  std::string TakePart(const v1::EncodeResponse& event) {
    if (event.has_started()) width_ = event.started().width();
    if (event.has_started() && width_ == 0) return "the vectors have no width";
    if (!event.has_vectors()) return "";
    if (width_ == 0) return "Vectors came before Started";
    const int values = event.vectors().values_size();
    if (values % width_ != 0) return "a vector is cut";
    return TakePart("vector", event.vectors().first_index(), values / width_);
  }

  // `first`: where the part says that it begins, counted like received().
  std::string TakePart(absl::string_view unit, int64_t first, int64_t count) {
    if (!started_ || finished_) {
      return absl::StrCat("a ", unit, " came outside Started and Finished");
    }
    if (count == 0) return "";
    if (first > received_) {
      return absl::StrCat(unit, "s ", received_, " to ", first - 1, " are lost");
    }
    if (first < received_) return absl::StrCat(unit, " ", first, " came twice");
    received_ += static_cast<uint32_t>(count);
    return "";
  }

  bool started_ = false;
  bool finished_ = false;
  uint32_t received_ = 0;
  int64_t width_ = 0;     // of a vector
  int64_t unscored_ = 1;  // tokens of a text before its first score
};

}  // namespace aft::client
