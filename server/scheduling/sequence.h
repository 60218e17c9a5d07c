#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "model/api/model_runner.h"
#include "server/scheduling/fair_queue.h"

namespace aft::server {

// The client that a sequence belongs to, and its rights.
struct SequenceOwner {
  std::string client;
  std::string user{};     // a user of the client; see FairItem
  double weight = 1;      // see FairQueue
  int32_t max_slots = 0;  // the client's quota; 0: the scheduler's default
  ServiceClass service_class = ServiceClass::kNormal;
};

// How a sequence continues an earlier text, and how a later one can continue it.
struct SequenceTurn {
  // The position of the first token of its prompt. The tokens before it are in a restored state.
  int64_t first_position = 0;
  // The model does not consume the last token, so that the state is the one before it. In a text to
  // score, the last token is only a target.
  bool leaves_last = false;
  // No step runs ahead of the sequence's results. So its state never contains a token that turns
  // out not to belong to its text, and Sequence::Ban can depend on all of its output.
  bool never_ahead = false;
  // In a text to score or to encode: tokens before this position are only read.
  int64_t asks_from = 0;
  // The position of the last token of a prompt to continue, if its log-probabilities are wanted.
  // Each token before it asks for the log-probability of the next one. 0: none does.
  int64_t scores_until = 0;
};

// One sequence as the scheduler sees it: its owner, and the tokens that the model still has to
// consume. The engine owns it; only ContinuousScheduler changes its phase. Thread-compatible.
class Sequence : public FairItem {
 public:
  enum class Phase {
    kIdle,      // not with a scheduler
    kWaiting,   // waits for its first slot
    kHeldBack,  // may not start yet
    kFollows,   // owns a slot; becomes a fork of its leader when the leader has read the prompt
    kPrompt,    // owns a slot; prompt tokens are left
    kDecode,    // owns a slot; samples one token at a time
    kRead,      // owns a slot; the model has all of the text, and nothing follows
    kParked,    // has given up its slot before its end, and waits for another one
  };
  enum class Purpose {
    kGenerate,  // continue the prompt
    kScore,     // the log-probability of each of the prompt's tokens but the first
    kEncode,    // the hidden vectors of the prompt's tokens
    kRead,      // the state after the prompt
  };
  using Owner = SequenceOwner;

  // `max_outputs`: the number of tokens that may be generated; no step samples more, even if steps
  // run ahead of their results. REQUIRES: the model has a token of `prompt` to consume; max_outputs
  // >= 1.
  explicit Sequence(std::vector<TokenId> prompt, Purpose purpose = Purpose::kGenerate,
                    int64_t max_outputs = std::numeric_limits<int64_t>::max(),
                    const Owner& owner = {}, const SequenceTurn& turn = {})
      : FairItem(owner.client, owner.weight, owner.service_class, owner.user),
        purpose_(purpose),
        max_slots_(owner.max_slots),
        turn_(turn),
        position_(turn.first_position),
        begin_(position_),
        prompt_(std::move(prompt)),
        prompt_end_(position_ + static_cast<int64_t>(prompt_.size()) - (turn.leaves_last ? 1 : 0)),
        outputs_left_(max_outputs) {
    AFT_CHECK(position_ >= 0 && prompt_left() > 0 && max_outputs >= 1);
  }

  // Makes `follower` another answer to the prompt of this sequence, its leader. The leader and all
  // of its followers wait for slots as one item. A follower begins as a copy of the leader before
  // the prompt's last token. REQUIRES: neither was added to a scheduler; the follower's prompt is
  // that token.
  void Lead(Sequence& follower) {
    AFT_CHECK(follower.position_ == prompt_end_ - 1 && follower.prompt_end_ == prompt_end_);
    follower.leader_ = this;
    followers_.push_back(&follower);
  }
  // Sets the tokens that the sequence may not sample next; see StepRow::banned. REQUIRES: `tokens`
  // is empty, or SequenceTurn::never_ahead is set.
  void Ban(std::vector<TokenId> tokens) {
    AFT_CHECK(tokens.empty() || turn_.never_ahead);
    banned_ = std::move(tokens);
  }
  const std::vector<TokenId>& banned() const { return banned_; }

  // Whether it has a leader. False once it is forked, or once its leader was removed.
  bool follows() const { return leader_ != nullptr; }
  // The number of sequences in its group: itself and its followers.
  int32_t group_size() const { return 1 + static_cast<int32_t>(followers_.size()); }

  Purpose purpose() const { return purpose_; }
  Phase phase() const { return phase_; }
  // -1 while it owns none.
  int32_t slot() const { return slot_; }
  const SequenceTurn& turn() const { return turn_; }
  // Empty once the model has all of it.
  const std::vector<TokenId>& prompt() const { return prompt_; }
  // The number of tokens handed to the model so far, which is the position of the next one.
  int64_t position() const { return position_; }
  // The number of steps in flight that name it.
  int flights() const { return flights_; }
  // The position at which it has begun, or would begin now: after a kept state, if there is one.
  int64_t begin() const { return begin_; }
  // The position after the last prompt token that the model consumes.
  int64_t prompt_end() const { return prompt_end_; }
  int64_t prompt_left() const { return position_ < prompt_end_ ? prompt_end_ - position_ : 0; }
  // The part of prompt_left() that may be read now. A group reads the last token together.
  int64_t readable() const { return prompt_left() - (followers_.empty() ? 0 : 1); }
  // The part of readable() that its next row could read.
  int64_t next_prompt_tokens() const {
    int64_t tokens = std::min(readable(), cut_ - position_);
    // A row asks for the scores of all of its tokens or of none.
    const int64_t unscored = purpose_ == Purpose::kScore ? turn_.asks_from - position_ : 0;
    if (scores_next()) tokens = std::min(tokens, turn_.scores_until - position_);
    return unscored > 0 ? std::min(tokens, unscored) : tokens;
  }
  // Whether its next row asks for the scores of a prompt to continue.
  bool scores_next() const { return position_ < turn_.scores_until; }
  // Whether it needs a token that no step has been asked for yet.
  bool decodes() const { return phase_ == Phase::kDecode && outputs_left_ > 0; }
  // The limit of its client; 0 means the scheduler's default.
  int32_t max_slots() const { return max_slots_; }
  // Whether the sequence is in the middle of its turn: it had a row in the step that was planned
  // last, and its client got less of that step than it could use.
  bool is_in_turn() const { return in_turn_; }
  // The value of ContinuousScheduler::CutAt for a sequence without a cut.
  static constexpr int64_t kNoCut = std::numeric_limits<int64_t>::max();

 private:
  friend class ContinuousScheduler;
  friend class PromptShares;
  friend class StepTurns;

  const Purpose purpose_;
  const int32_t max_slots_;
  const SequenceTurn turn_;
  Phase phase_ = Phase::kIdle;
  int32_t slot_ = -1;
  int64_t position_;
  int64_t begin_;
  std::vector<TokenId> prompt_;  // emptied once the model has all of it
  const int64_t prompt_end_;
  Sequence* leader_ = nullptr;
  std::vector<Sequence*> followers_;
  int64_t cut_ = kNoCut;
  int64_t outputs_left_;     // number of tokens that no step has been asked for yet
  int pending_ = 0;          // number of tokens that steps in flight will sample
  TokenId next_token_ = -1;  // when pending_ == 0: the next token to consume
  std::vector<TokenId> banned_;
  // While it waits with followers: the slots that stayed free for them while another client waited,
  // added up over all steps.
  int64_t kept_slots_ = 0;

  // These are valid while it owns a slot.
  int64_t rows_left_ = 0;  // rows that it must have before it may be parked
  int flights_ = 0;        // steps in flight that name it
  bool firm_ = false;      // it is not batch work, and never parked
  bool paused_ = false;    // it has no row in the next step, so that no step names it after that
  int64_t allowed_ = 0;    // the most tokens that it may have in the step that is planned
  int64_t chunk_ = 0;      // tokens of its prompt in that step
  int turn_steps_ = 0;     // steps that its turn has had
  bool in_turn_ = false;   // see is_in_turn()
};

}  // namespace aft::server
