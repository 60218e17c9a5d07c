#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "model/api/model_runner.h"
#include "server/scheduling/fair_queue.h"
#include "server/scheduling/prompt_shares.h"
#include "server/scheduling/sequence.h"
#include "server/scheduling/slot_pool.h"
#include "server/scheduling/slot_quotas.h"
#include "server/scheduling/step.h"
#include "server/scheduling/step_shares.h"
#include "server/scheduling/step_turns.h"
#include "server/scheduling/time.h"

namespace aft::server {

// The sequences that got a slot or gave one up. The engine tells the runner, in the order of the
// members; each comment names the call.
struct Placement {
  struct Parked {
    Sequence* sequence;
    int32_t slot;  // its former slot, which one of the sequences below has now
  };
  std::vector<Parked> parked;        // KeepSlot
  std::vector<Sequence*> started;    // BindSlot
  std::vector<Sequence*> following;  // have slots now, and will be forked
  std::vector<Sequence*> unparked;   // BindSlot with its kept state
  struct Forked {
    Sequence* leader;  // no step in flight names its slot
    Sequence* sequence;
  };
  // BindSlot as a fork, or as a new sequence where the leader has read nothing.
  std::vector<Forked> forked;
  // Removed, because their leader was removed before it had read their prompt.
  std::vector<Sequence*> abandoned;
};

// Continuous batching as pure logic: no thread, lock or clock.
//
// Slots: Place hands out free slots in the order of FairQueue. A client is charged for every token
// that is computed for it. A sequence is *firm* if three conditions hold, with earlier sequences
// counted first: its class is better than batch; its client has no more firm sequences than its
// quota; and it leaves the reserved slots free unless it is interactive. All other sequences are
// *batch work*, whatever their class; they use slots that are not needed otherwise. When no slot is
// free and a waiting sequence would be firm, batch work is parked for it: that of the client that
// has had the most service, the latest sequence first. Batch work of one client is also parked for
// that of another client which has had less and has waited `age`. A parked sequence keeps its
// progress, and goes before the other sequences of its client. When it has a slot again, it gets
// kQuantum rows before it may be parked again.
//
// The members of a group (Sequence::Lead) wait as one item and get their slots at the same time.
// Slots that stay free for a group while another client waits are charged to its client. "Several
// answers" in server/engine/README.md has the rules.
//
// Schedule plans a step and Retire ends it, in the same order; up to `max_in_flight` steps may be
// between the two. With more than one, a step is planned before the results of the last step are
// known, so its decode rows consume kLastSampled. If a sequence turns out to have ended, the owner
// calls Remove. Its row in the next step is then wasted, and its slot is free when that step
// retires. A sequence that is to be parked also sits out a step first.
//
// A step that clients do not share has one row for each live decode, and splits the rest of the
// token budget among the live prompts. The budget exceeds the number of slots.
//
// While a sequence decodes, clients may share a step. "Prompts" and "Shared steps" in README.md
// have the rules. A sequence that sits out a step keeps its slot and its state.
//
// A text to score is a prompt whose rows report the log-probabilities of the tokens that follow;
// nothing is decoded after it.
//
// A prompt can be cut (CutAt): a row ends at the cut, and the sequence sits out until its owner has
// seen the state there. If another sequence is reading the beginning of the same prompt, a sequence
// may be held back from its first slot (MayStart), begin after that part (BeginAt), and lend its
// class to the other one (SetClass).
//
// Thread-compatible.
class ContinuousScheduler {
 public:
  // Is called for a sequence that is about to get its first slot. If it returns false, the sequence
  // is held back: it does not wait until its owner calls Readmit.
  using MayStart = absl::FunctionRef<bool(Sequence&)>;

  struct Options {
    int32_t slots = 1;             // at least 1
    int64_t max_step_tokens = 2;   // at least slots + 1
    int max_in_flight = 1;         // at least 1
    Duration age{};                // see FairQueue
    int32_t max_client_slots = 0;  // quota of a client without its own; 0: all slots
    int32_t reserved_slots = 0;    // for interactive sequences; below slots
    bool strict_quotas = false;    // slots that are kept for others stay free
    int32_t max_parked = 0;
    Duration itl_target{};  // a step that is no longer is not shared
  };
  static constexpr int64_t kQuantum = 32;
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  explicit ContinuousScheduler(const Options& options);

  // Adds a sequence, which waits for a slot from `now` on. It must live until Remove. REQUIRES:
  // phase kIdle, and it never had a slot; a follower comes after its leader, before Place.
  void Add(Sequence& sequence, TimePoint now);
  // Lets the sequence wait as if it had never been held back. REQUIRES: phase kHeldBack.
  void Readmit(Sequence& sequence);

  // Takes a sequence out, whatever its phase. Its slot is free once no step in flight names it.
  void Remove(Sequence& sequence);

  // Hands out slots. The result is valid until the next call. REQUIRES: for the steps that have
  // retired, Sampled was called for every kLast row, and sequences in phase kRead were removed,
  // except where sequences[i] is null.
  const Placement& Place(TimePoint now, MayStart may_start);
  const Placement& Place(TimePoint now) {
    return Place(now, [](Sequence&) { return true; });
  }

  // The sequence begins at `position`, because a state holds the tokens before it; or at an earlier
  // position again, if that state is not available after all. REQUIRES: no step has named it; the
  // position is within its prompt.
  void BeginAt(Sequence& sequence, int64_t position);

  // No row of the sequence goes beyond `position` until this is called again. kNoCut: there is no
  // limit. REQUIRES: position() <= position < prompt_end(), or kNoCut.
  void CutAt(Sequence& sequence, int64_t position);
  // Whether the sequence has reached its cut, and no step in flight names it.
  static bool IsAtCut(const Sequence& sequence) {
    return sequence.position_ == sequence.cut_ && sequence.flights_ == 0;
  }

  // Changes the class of the sequence. A Place that is running still counts it by its old class.
  void SetClass(Sequence& sequence, ServiceClass service_class) {
    queue_.SetClass(sequence, service_class);
  }

  // Plans the next step, which is then in flight. It is valid until it retires and Schedule is
  // called again. Null when there is nothing to run: no sequence is live, or each waits for results
  // of steps in flight. `prompt_budget` is the limit for prompt tokens in a step while sequences
  // decode; but the oldest prompt of each client gets at least one token, and one of them gets two.
  // `cost` is the cost of steps in seconds; if tokens cost nothing, no step is shared. REQUIRES: as
  // Place; in_flight() < max_in_flight.
  const Step* Schedule(int64_t prompt_budget = kNoLimit, const StepCost& cost = {});

  // Lets the sequence sit out the next step. So no step names it once those in flight have retired.
  static void Pause(Sequence& sequence) { sequence.paused_ = true; }

  // The runner has finished the oldest step in flight. The result is valid until the next call of
  // Schedule. REQUIRES: in_flight() > 0.
  const Step& Retire();

  // The model drew `token` for a kLast row of the step that retired last.
  void Sampled(Sequence& sequence, TokenId token);

  int in_flight() const { return static_cast<int>(in_flight_.size()); }

  // The numbers of sequences that wait for their first slot, and of those that wait for another
  // one.
  int32_t waiting() const {
    return static_cast<int32_t>(queue_.waiting()) - parked_ + waiting_followers_;
  }
  int32_t parked() const { return parked_; }
  int32_t live() const { return static_cast<int32_t>(live_.size()); }
  const std::vector<Sequence*>& live_sequences() const { return live_; }
  const SlotPool& slots() const { return slots_; }

  // The largest group that can ever have its slots. `max_slots`: as in SequenceOwner.
  int32_t MaxGroup(int32_t max_slots, ServiceClass service_class) const {
    return quotas_.MaxGroup(max_slots, service_class);
  }

 private:
  // A planned step, and the slots that are free when it retires.
  struct Flight {
    Step step;
    std::vector<int32_t> releases;
  };

  // Place.
  Sequence* NextForFreeSlots(TimePoint now);
  Sequence* MakeRoom(TimePoint now);
  int32_t ParkingRoom() const;
  static bool GoesOn(const Sequence& sequence);
  static bool MayBeParked(const Sequence& sequence);
  const Sequence* MostServed() const;
  bool ChooseVictims(const Sequence& next, bool by_age);
  Sequence* ChooseVictim(const Sequence& next, bool by_age, bool own) const;
  Sequence* Borrower(TimePoint now);
  void Park(Sequence& sequence, TimePoint now);
  void LeaveLive(Sequence& sequence);
  void Give(Sequence& sequence, TimePoint now);
  void ChargeKeptSlots(Sequence& sequence);
  bool IsHeldBack(Sequence& sequence, MayStart may_start);
  void Occupy(Sequence& sequence);

  // Groups.
  void Leave(Sequence& follower);
  void Abandon(Sequence& leader);
  void ForkGroups();
  void Fork(Sequence& leader);

  // Schedule.
  static int64_t Runnable(const Sequence& sequence);
  void AddDecodeRow(Sequence& sequence);
  void AskForToken(Sequence& sequence, StepRow& row);
  void AddPromptRow(Sequence& sequence, int64_t tokens);
  StepRow& AddRow(Sequence& sequence, int64_t tokens);
  void ClearRows();

  const Options options_;
  SlotPool slots_;
  FairQueue queue_;
  SlotQuotas quotas_;  // valid within Place
  StepTurns turns_;    // of sequences that own a slot
  PromptShares prompt_shares_;
  std::vector<Sequence*> live_;  // the sequences that own a slot, the longest-standing owner first
  int32_t parked_ = 0;
  int32_t waiting_followers_ = 0;     // followers of waiting leaders
  int32_t unforked_ = 0;              // leaders with slots that are not forked yet
  std::vector<Sequence*> abandoned_;  // until the next Place
  uint64_t passes_ = 0;               // calls of NextForFreeSlots; see FairAccount::at_quota
  Placement placement_;
  std::vector<std::unique_ptr<Flight>> in_flight_;  // oldest first
  std::unique_ptr<Flight> retired_;
  std::vector<std::unique_ptr<Flight>> spare_;  // kept for their memory
  Step* step_ = nullptr;                        // while Schedule fills it

  // These are valid within Place.
  Sequence* kept_for_ = nullptr;  // a group that needs more slots
  std::vector<Sequence*> victims_;

  // Scratch of Schedule, kept for its memory.
  std::vector<Sequence*> prompts_;
  std::vector<std::vector<TokenId>> row_tokens_;  // of finished rows, empty
};

}  // namespace aft::server
