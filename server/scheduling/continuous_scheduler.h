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
#include "server/scheduling/sequence.h"
#include "server/scheduling/slot_pool.h"
#include "server/scheduling/slot_quotas.h"
#include "server/scheduling/step.h"
#include "server/scheduling/step_shares.h"
#include "server/scheduling/step_turns.h"
#include "server/scheduling/time.h"

namespace aft::server {

// Who got a slot and who gave one up, for the engine to tell the runner, in this order.
struct Placement {
  struct Parked {
    Sequence* sequence;
    int32_t slot;  // that it had; one of those below has it now
  };
  std::vector<Parked> parked;        // SnapshotSlot
  std::vector<Sequence*> started;    // BindSlot
  std::vector<Sequence*> following;  // have slots from now on, and will be forked
  std::vector<Sequence*> unparked;   // BindSlot behind its snapshot
  struct Forked {
    Sequence* leader;  // no step in flight names its slot
    Sequence* sequence;
  };
  // BindSlot as a fork; as a new sequence where the leader has read nothing.
  std::vector<Forked> forked;
  // Removed, because their leader was before it had read their prompt.
  std::vector<Sequence*> abandoned;
};

// Continuous batching as pure logic: no thread, lock or clock.
//
// Who has a slot: Place hands out free slots in the order of FairQueue; a client is charged for
// every token that is computed for it. A sequence is *firm* when it is not batch work: its class is
// better than batch, its client has no more than its quota of firm ones, and unless it is
// interactive it leaves the reserved slots alone; earlier ones first. What a client runs beyond
// that, in slots that nobody needs, is batch work whatever its class. When no slot is free and one
// waits that would be firm, batch work is parked for it: of the client that has had the most, the
// latest first. So is batch work of one client for that of another which has had less and has
// waited `age`. A parked sequence keeps its progress, goes before its client's others, and once it
// is back it has kQuantum rows before it may be parked again.
//
// A group (Sequence::Lead) waits as one item and gets its slots at the same time. It takes free
// slots, and parks batch work as others do when its first sequence would be firm, only when that
// makes enough. Where it is its turn and there are not enough, slots are kept for it; meanwhile
// waiting batch work may have them that can be parked when the rest has come. The leader reads the
// prompt but for the last token, sits out until no step in flight names its slot, and is forked:
// from then on all are sequences like any other. Before that none of them is parked, and they go
// with their leader. With strict quotas a group has to find room for all of it within them.
//
// Steps are planned by Schedule and end with Retire, in the same order; up to `max_in_flight` may
// be between the two. With more than one, a step is planned before the results of the one before
// are known: its decode rows consume kLastSampled. A sequence that turns out to have ended is
// Removed; the row that it has in the next step is then wasted, and its slot is free when that step
// retires. Likewise one that is to be parked sits out a step first.
//
// A step that no client shares has one row for each live decode and splits the rest of the token
// budget among the live prompts. Because the budget exceeds the number of slots, there is room for
// a row of every live sequence.
//
// While a sequence decodes, and when that step would be too long beside what the client that could
// use the fewest tokens has without the others, clients share it (ShareStep): a decode could use
// one token, prompts what the step has room for. Half of what a client gets is for its prompts,
// more where its decodes do not need it. Its sequences take turns of StepTurns::kTurnSteps rows;
// one that has had its turn, or is new, comes last. So one that can have a row waits for less than
// kTurnSteps steps for each live sequence of its client. It has a row in every step when all live
// sequences are of one client, or when its client could use the fewest tokens, or, but for small
// steps, when its client needs no more than its share. Classes make no difference to it. One of
// StepTurns::kSmallStep steps that could be shared is a small one, without prompts of clients that
// have more than their share, in which the cost of a token shows. A sequence that sits out keeps
// its slot and its state, so its tokens are the same; so are those of a prompt that is read in
// smaller pieces. Where nothing decodes no step is shared.
//
// How prompts share what a step has for all of them: the first takes up to half of what is left,
// the next up to half of the rest, and so on, each at least one token; what short prompts leave
// over goes to the first that can use it. Better classes come first, then those that have had their
// slot for longer. So prompts finish in about that order, and one very long prompt still leaves
// half of the budget to those behind it. Of what a client has in a shared step its prompts get
// their parts by the same rule, in the order of their turns; what is too little to divide goes to
// one.
// A text to score is a prompt whose rows report the log-probabilities of the tokens that follow;
// nothing is decoded after it.
//
// A prompt can be cut (CutAt): a row ends there, and the sequence sits out until its owner has seen
// the state that it has then. One whose prompt another sequence is reading may be kept from its
// first slot (MayStart), begin behind what was read (BeginAt), and lend its class (SetClass).
//
// Thread-compatible.
class ContinuousScheduler {
 public:
  // Asked of a sequence that is about to get its first slot. False: it is held back, and no longer
  // waits, until its owner readmits it.
  using MayStart = absl::FunctionRef<bool(Sequence&)>;

  struct Options {
    int32_t slots = 1;             // at least 1
    int64_t max_step_tokens = 2;   // at least slots + 1
    int max_in_flight = 1;         // at least 1
    Duration age{};                // see FairQueue
    int32_t max_client_slots = 0;  // quota of a client that has none of its own; 0: all slots
    int32_t reserved_slots = 0;    // for interactive sequences; below slots
    bool strict_quotas = false;    // slots that are kept for others stay free
    int32_t max_parked = 0;
    Duration itl_target{};  // no step is shared that is no longer
  };
  static constexpr int64_t kQuantum = 32;
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  explicit ContinuousScheduler(const Options& options);

  // The sequence waits for a slot from `now` on. It must outlive its stay here. REQUIRES: phase
  // kIdle, and it never had a slot; one that follows comes after its leader, before Place.
  void Add(Sequence& sequence, TimePoint now);
  // It waits as if it had never been held back. REQUIRES: phase kHeldBack.
  void Readmit(Sequence& sequence);

  // Takes a sequence out, whatever its phase. Its slot is free once no step in flight names it.
  void Remove(Sequence& sequence);

  // Hands out slots. The result is valid until the next call. REQUIRES: of steps that have retired,
  // Sampled was called for every kLast row and sequences in phase kRead were removed, except
  // where sequences[i] is null.
  const Placement& Place(TimePoint now, MayStart may_start);
  const Placement& Place(TimePoint now) {
    return Place(now, [](Sequence&) { return true; });
  }

  // What its prompt has before `position` has been read, or has to be read after all. REQUIRES: no
  // step has named it; the position is within its prompt.
  void BeginAt(Sequence& sequence, int64_t position);

  // No row goes beyond `position`, and none follows it, until this is called again; kNoCut: all may
  // go on. REQUIRES: position() <= position < prompt_end(), or kNoCut.
  void CutAt(Sequence& sequence, int64_t position);
  // It has come to its cut, and no step in flight names it.
  static bool IsAtCut(const Sequence& sequence) {
    return sequence.position_ == sequence.cut_ && sequence.flights_ == 0;
  }
  // Whether a step in flight names it.
  static bool IsInFlight(const Sequence& sequence) { return sequence.flights_ > 0; }

  // Its class from now on. While Place runs, what it counts goes by the class before.
  void SetClass(Sequence& sequence, ServiceClass service_class) {
    queue_.SetClass(sequence, service_class);
  }

  // Plans the next step. Null, and no step is in flight for it, when there is nothing to run: no
  // sequence is live, or what is left of each hangs on results that are under way. The step is
  // valid until it retires and Schedule is called again. `prompt_budget`: tokens of prompts in a
  // step while sequences decode; each prompt in the step gets one at least. `cost`: of steps, in
  // seconds; where tokens cost nothing, no step is shared. REQUIRES: as Place;
  // in_flight() < max_in_flight.
  const Step* Schedule(int64_t prompt_budget = kNoLimit, const StepCost& cost = {});

  // The sequence sits out the next step: none in flight names it then, once those that are have
  // retired.
  static void Pause(Sequence& sequence) { sequence.paused_ = true; }

  // The oldest step in flight is done with: the runner has finished it. The result is valid until
  // the next call of Schedule. REQUIRES: in_flight() > 0.
  const Step& Retire();

  // The model drew `token` for a kLast row of the step that retired last.
  void Sampled(Sequence& sequence, TokenId token);

  int in_flight() const { return static_cast<int>(in_flight_.size()); }

  // For their first slot; and for another one.
  int32_t waiting() const {
    return static_cast<int32_t>(queue_.waiting()) - parked_ + waiting_followers_;
  }
  int32_t parked() const { return parked_; }
  int32_t live() const { return static_cast<int32_t>(live_.size()); }
  const std::vector<Sequence*>& live_sequences() const { return live_; }
  const SlotPool& slots() const { return slots_; }

  // The largest group that can ever have its slots. `max_slots`: as of SequenceOwner.
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
  void SharePrompts(int64_t budget);
  void AddPromptRow(Sequence& sequence, int64_t tokens);
  StepRow& AddRow(Sequence& sequence, int64_t tokens);
  void ClearRows();

  const Options options_;
  SlotPool slots_;
  FairQueue queue_;
  SlotQuotas quotas_;            // valid within Place
  StepTurns turns_;              // of those that own a slot
  std::vector<Sequence*> live_;  // own a slot; those that have had it for longer first
  int32_t parked_ = 0;
  int32_t waiting_followers_ = 0;     // of leaders that wait
  int32_t unforked_ = 0;              // leaders with slots
  std::vector<Sequence*> abandoned_;  // until the next Place
  Placement placement_;
  std::vector<std::unique_ptr<Flight>> in_flight_;  // oldest first
  std::unique_ptr<Flight> retired_;
  std::vector<std::unique_ptr<Flight>> spare_;  // kept for their memory
  Step* step_ = nullptr;                        // while Schedule fills it

  // Valid within Place.
  const Sequence* kept_for_ = nullptr;        // a group that needs more slots
  std::vector<const FairAccount*> at_quota_;  // clients whose turn must wait
  std::vector<Sequence*> victims_;

  // Scratch of Schedule, kept for its memory.
  std::vector<Sequence*> prompts_;
  std::vector<int64_t> chunks_;
  std::vector<std::vector<TokenId>> row_tokens_;  // of rows that are done with, empty
};

}  // namespace aft::server
