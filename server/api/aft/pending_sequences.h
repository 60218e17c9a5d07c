#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace aft::server {

// Bytes in memory for each byte on the wire: a log-probability is an object of about 50 bytes, and
// has 11 bytes on the wire.
inline constexpr size_t kHeldBytes = 5;

// The messages of a call that wait to be written, for each of its sequences. A sequence has a part
// for the scores of its prompt, a part to which nearly everything else is added, a tail, and after
// these its end. Several answers to one prompt share its scores, which sequence 0 has. Sequences
// take turns. `Message` is the message of the stream. Thread-compatible.
template <typename Message>
class PendingSequences {
 public:
  // There is one sequence until this is called.
  void ExpectSequences(uint32_t sequences) { pending_.resize(sequences); }

  // Returns false if nothing waits. With `prompts`, the scores of sequence 0 precede everything
  // else; without, the scores of prompts are not taken.
  bool Take(Message& outgoing, bool prompts = true) {
    if (prompts && TakePart(pending_.front().prompt, outgoing)) return true;
    for (size_t i = 0; i < pending_.size(); ++i) {
      Pending& pending = pending_[turn_];
      turn_ = turn_ + 1 < pending_.size() ? turn_ + 1 : 0;
      if (TakePart(pending.part, outgoing) || TakePart(pending.tail, outgoing)) return true;
      if (pending.finished.has_value()) {
        outgoing = *std::exchange(pending.finished, std::nullopt);
        pending_bytes_ -= outgoing.ByteSizeLong();
        return true;
      }
    }
    return false;
  }

  void Drop() {
    for (Pending& pending : pending_) {
      pending = {};
    }
    pending_bytes_ = 0;
  }

  size_t pending_bytes() const { return pending_bytes_; }
  size_t held_bytes() const { return kHeldBytes * pending_bytes_; }

 protected:
  struct Waiting {
    Message message;
    size_t bytes = 0;
  };
  // The messages of one sequence that wait.
  struct Pending {
    Waiting prompt;
    Waiting part;
    Waiting tail;  // what must not be merged with `part`
    std::optional<Message> finished;
  };

  void Grew(Waiting& part, size_t bytes) {
    part.bytes += bytes;
    pending_bytes_ += bytes;
  }
  void AddFinished(Message message, uint32_t sequence) {
    pending_bytes_ += message.ByteSizeLong();
    pending_[sequence].finished = std::move(message);
  }

  bool TakePart(Waiting& part, Message& outgoing) {
    if (part.message.event_case() == Message::EVENT_NOT_SET) return false;
    // A swap instead of a move lets both messages keep their memory.
    outgoing.Swap(&part.message);
    part.message.Clear();
    pending_bytes_ -= std::exchange(part.bytes, 0);
    return true;
  }

  std::vector<Pending> pending_ = std::vector<Pending>(1);

 private:
  size_t pending_bytes_ = 0;
  size_t turn_ = 0;  // the sequence whose turn it is
};

}  // namespace aft::server
