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

// The messages of a call that wait to be written, for each of its sequences. A sequence has one
// part, to which everything new is added, and after it its end. Sequences take turns. `Message` is
// the message of the stream. Thread-compatible.
template <typename Message>
class PendingSequences {
 public:
  // There is one sequence until this is called.
  void ExpectSequences(uint32_t sequences) { pending_.resize(sequences); }

  // Returns false if nothing waits.
  bool Take(Message& outgoing) {
    for (size_t i = 0; i < pending_.size(); ++i) {
      Pending& pending = pending_[turn_];
      turn_ = turn_ + 1 < pending_.size() ? turn_ + 1 : 0;
      if (pending.part.event_case() != Message::EVENT_NOT_SET) {
        // A swap instead of a move lets both messages keep their memory.
        outgoing.Swap(&pending.part);
        pending.part.Clear();
        pending_bytes_ -= std::exchange(pending.part_bytes, 0);
        return true;
      }
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
      pending.part.Clear();
      pending.part_bytes = 0;
      pending.finished.reset();
    }
    pending_bytes_ = 0;
  }

  size_t pending_bytes() const { return pending_bytes_; }
  size_t held_bytes() const { return kHeldBytes * pending_bytes_; }

 protected:
  // What waits of one sequence.
  struct Pending {
    Message part;
    size_t part_bytes = 0;
    std::optional<Message> finished;
  };

  void PartGrew(Pending& pending, size_t bytes) {
    pending.part_bytes += bytes;
    pending_bytes_ += bytes;
  }
  void AddFinished(Message message, uint32_t sequence) {
    pending_bytes_ += message.ByteSizeLong();
    pending_[sequence].finished = std::move(message);
  }

  std::vector<Pending> pending_ = std::vector<Pending>(1);

 private:
  size_t pending_bytes_ = 0;
  size_t turn_ = 0;  // the sequence whose turn it is
};

}  // namespace aft::server
