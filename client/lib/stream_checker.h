#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "aft/v1/inference.pb.h"

namespace aft::client {

// Follows one stream of InferenceService and finds violations of the protocol: a wrong order of
// Started, parts and Finished, and gaps between parts. Thread-compatible.
class StreamChecker {
 public:
  StreamChecker() = default;
  // Follows a stream that continues after `received` tokens or scores. `started`: Started has been
  // seen already.
  explicit StreamChecker(uint32_t received, bool started = false) : started_(started) {
    sequences_[0].received = received;
  }
  // Expects this number of sequences, each with its own parts and Finished: answers
  // (GenerateRequest.n), or texts. REQUIRES: no event was taken yet.
  void ExpectSequences(uint32_t sequences) { expected_ = std::max(sequences, 1U); }
  // Expects a text that begins with `tokens` tokens without scores. REQUIRES: no event was taken
  // yet.
  void ExpectContext(uint32_t tokens) {
    if (tokens > 0) unscored_ = tokens;
  }

  // Returns what is wrong with `event`, or "". Unknown events of a newer server are accepted.
  template <typename Response>
  std::string Take(const Response& event) {
    const uint32_t sequence = SequenceOf(event);
    if (sequence >= expected_) return absl::StrCat("there is no sequence ", sequence);
    if (sequence >= sequences_.size()) sequences_.resize(sequence + 1);
    sequence_ = &sequences_[sequence];
    if (std::string broken = TakePart(event); !broken.empty()) return broken;
    if (event.has_started()) {
      if (started_) return "Started came twice";
      started_ = true;
    } else if (event.has_finished()) {
      if (!started_ || sequence_->finished) return "Finished came before Started or twice";
      sequence_->finished = true;
      ++finished_;
    }
    return "";
  }

  bool started() const { return started_; }
  bool finished() const { return finished_ == expected_; }
  bool finished(uint32_t sequence) const {
    return sequence < sequences_.size() && sequences_[sequence].finished;
  }
  // The number of tokens, scores or vectors that have arrived.
  uint32_t received(uint32_t sequence) const {
    return sequence < sequences_.size() ? sequences_[sequence].received : 0;
  }
  // Number of tokens of a text before its first score; 0 if that is not known yet.
  uint32_t unscored() const { return unscored_.value_or(0); }
  // The position in the prompt after its last score that has arrived; 0: none has.
  uint32_t scored() const { return scored_; }
  // Expects only the scores of a prompt from this position on. REQUIRES: no event was taken yet.
  void ExpectScored(uint32_t scored) { scored_ = scored; }
  uint32_t received() const {
    uint32_t sum = 0;
    for (const Sequence& sequence : sequences_) sum += sequence.received;
    return sum;
  }

 private:
  struct Sequence {
    uint32_t received = 0;
    bool finished = false;
  };

  static uint32_t SequenceOf(const v1::GenerateResponse& event) { return event.sequence(); }
  template <typename Response>
  static uint32_t SequenceOf(const Response& event) {
    return event.index();
  }

  std::string TakePart(const v1::GenerateResponse& event) {
    if (event.has_prompt_scores()) return TakeScores(event.prompt_scores());
    if (!event.has_delta()) return "";
    return TakePart("token", event.delta().first_index(), event.delta().token_ids_size());
  }

  std::string TakeScores(const v1::ScoreChunk& scores) {
    if (!started_ || sequence_->finished) {
      return "scores of the prompt came outside Started and Finished";
    }
    // The first token of a prompt has a score only if another text comes before.
    if (scores.first_index() > std::max(scored_, 1U)) {
      return absl::StrCat("scores of the prompt are lost before ", scores.first_index());
    }
    scored_ = scores.first_index() + static_cast<uint32_t>(scores.token_ids_size());
    return "";
  }

  std::string TakePart(const v1::ScoreResponse& event) {
    if (!event.has_chunk()) return "";
    const v1::ScoreChunk& chunk = event.chunk();
    if (chunk.logprobs_size() != chunk.token_ids_size()) {
      return "a chunk does not have one log-probability for each token";
    }
    // The first token of a text has a score only if another text comes before.
    if (!unscored_) unscored_ = chunk.first_index() == sequence_->received ? 0 : 1;
    return TakePart("score", int64_t{chunk.first_index()} - *unscored_, chunk.token_ids_size());
  }

  std::string TakePart(const v1::EncodeResponse& event) {
    if (event.has_started()) width_ = event.started().width();
    if (event.has_started() && width_ == 0) return "the vectors have no width";
    if (!event.has_vectors()) return "";
    if (width_ == 0) return "Vectors came before Started";
    const int values = event.vectors().values_size();
    if (values % width_ != 0) return "a vector is incomplete";
    return TakePart("vector", event.vectors().first_index(), values / width_);
  }

  // `first`: the index at which the part begins, counted like received().
  std::string TakePart(absl::string_view unit, int64_t first, int64_t count) {
    uint32_t& received = sequence_->received;
    if (!started_ || sequence_->finished) {
      return absl::StrCat("a ", unit, " came outside Started and Finished");
    }
    if (count == 0) return "";
    if (first > received) {
      return absl::StrCat(unit, "s ", received, " to ", first - 1, " are lost");
    }
    if (first < received) return absl::StrCat(unit, " ", first, " came twice");
    received += static_cast<uint32_t>(count);
    return "";
  }

  bool started_ = false;
  uint32_t expected_ = 1;
  uint32_t finished_ = 0;
  std::vector<Sequence> sequences_ = std::vector<Sequence>(1);  // those that had an event so far
  Sequence* sequence_ = nullptr;                                // the sequence of the current event
  uint32_t scored_ = 0;                                         // see scored()
  int64_t width_ = 0;                                           // of a vector
  // Number of tokens of a text before its first score, once known.
  std::optional<uint32_t> unscored_;
};

}  // namespace aft::client
