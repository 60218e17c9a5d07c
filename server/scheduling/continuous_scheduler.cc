#include "server/scheduling/continuous_scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace aft::server {
namespace {

const Sequence& AsSequence(const FairItem& item) { return static_cast<const Sequence&>(item); }

}  // namespace

ContinuousScheduler::ContinuousScheduler(const Options& options)
    : options_(options),
      slots_(options.slots),
      queue_(options.age),
      quotas_({.slots = options.slots,
               .max_client_slots = options.max_client_slots,
               .reserved_slots = options.reserved_slots,
               .strict = options.strict_quotas},
              queue_),
      turns_({.max_step_tokens = options.max_step_tokens, .itl_target = options.itl_target},
             queue_),
      prompt_shares_(queue_) {
  AFT_CHECK(options.slots >= 1 && options.max_step_tokens > options.slots);
  AFT_CHECK(options.max_in_flight >= 1 && options.reserved_slots < options.slots);
}

void ContinuousScheduler::Add(Sequence& sequence, TimePoint now) {
  AFT_CHECK(sequence.phase_ == Sequence::Phase::kIdle &&
            sequence.position_ == sequence.turn_.first_position);
  sequence.phase_ = Sequence::Phase::kWaiting;
  if (sequence.follows()) {
    ++waiting_followers_;
  } else {
    queue_.Push(sequence, now);
  }
}

void ContinuousScheduler::Readmit(Sequence& sequence) {
  AFT_CHECK(sequence.phase_ == Sequence::Phase::kHeldBack);
  sequence.phase_ = Sequence::Phase::kWaiting;
  queue_.PushAgain(sequence);
}

void ContinuousScheduler::BeginAt(Sequence& sequence, int64_t position) {
  AFT_CHECK(sequence.flights_ == 0 && sequence.turn_.first_position <= position &&
            position < sequence.prompt_end_);
  sequence.position_ = sequence.begin_ = position;
}

void ContinuousScheduler::CutAt(Sequence& sequence, int64_t position) {
  AFT_CHECK(position == Sequence::kNoCut ||
            (sequence.position_ <= position && position < sequence.prompt_end_));
  sequence.cut_ = position;
}

void ContinuousScheduler::Remove(Sequence& sequence) {
  if (sequence.phase_ == Sequence::Phase::kIdle) return;
  if (sequence.phase_ == Sequence::Phase::kParked) --parked_;
  if (sequence.phase_ == Sequence::Phase::kWaiting && !FairQueue::Contains(sequence)) {
    --waiting_followers_;
  }
  abandoned_.erase(std::remove(abandoned_.begin(), abandoned_.end(), &sequence), abandoned_.end());
  if (sequence.follows()) Leave(sequence);
  if (!sequence.followers_.empty()) Abandon(sequence);
  if (sequence.slot_ >= 0) {
    LeaveLive(sequence);
    Flight* last = nullptr;
    for (const auto& flight : in_flight_) {
      std::vector<Sequence*>& rows = flight->step.sequences;
      const auto row = std::find(rows.begin(), rows.end(), &sequence);
      if (row == rows.end()) continue;
      *row = nullptr;
      last = flight.get();
    }
    if (last != nullptr) {
      last->releases.push_back(sequence.slot_);
    } else {
      slots_.Release(sequence.slot_);
    }
    sequence.slot_ = -1;
  }
  ChargeKeptSlots(sequence);
  queue_.Leave(sequence);
  sequence.phase_ = Sequence::Phase::kIdle;
}

const Placement& ContinuousScheduler::Place(TimePoint now, MayStart may_start) {
  placement_.parked.clear();
  placement_.started.clear();
  placement_.following.clear();
  placement_.unparked.clear();
  placement_.forked.clear();
  placement_.abandoned.clear();
  placement_.abandoned.swap(abandoned_);
  for (Sequence* sequence : placement_.abandoned) Remove(*sequence);
  if (unforked_ > 0) ForkGroups();
  if (queue_.waiting() == 0) return placement_;
  quotas_.Clear();
  for (Sequence* sequence : live_) sequence->firm_ = quotas_.Add(*sequence);
  while (queue_.waiting() > 0) {
    kept_for_ = nullptr;
    Sequence* next = slots_.free() > 0 ? NextForFreeSlots(now) : nullptr;
    victims_.clear();
    if (next == nullptr) next = MakeRoom(now);
    if (next == nullptr) victims_.clear();
    if (next == nullptr && kept_for_ != nullptr) next = Borrower(now);
    if (next == nullptr) {
      // Free slots that no other client waits for cost the group nothing.
      if (kept_for_ != nullptr && queue_.waiting_clients() > 1) {
        kept_for_->kept_slots_ += slots_.free();
      }
      break;
    }
    if (IsHeldBack(*next, may_start)) continue;
    for (Sequence* victim : victims_) Park(*victim, now);
    Give(*next, now);
  }
  return placement_;
}

// Whether the sequence may not start yet; if so, it does not wait in the queue any more.
bool ContinuousScheduler::IsHeldBack(Sequence& sequence, MayStart may_start) {
  if (sequence.phase_ == Sequence::Phase::kParked || may_start(sequence)) return false;
  ChargeKeptSlots(sequence);
  queue_.Leave(sequence);
  sequence.phase_ = Sequence::Phase::kHeldBack;
  return true;
}

// The sequence whose turn it is, if there are enough slots. Else null, and kept_for_ may be set.
Sequence* ContinuousScheduler::NextForFreeSlots(TimePoint now) {
  ++passes_;
  bool others_wait = false;
  while (true) {
    auto* const next = static_cast<Sequence*>(
        queue_.Next(now, [&](const FairItem& item) -> std::optional<ServiceClass> {
          const ServiceClass own = item.service_class();
          if (others_wait && own != ServiceClass::kInteractive) return std::nullopt;
          if (queue_.account(item)->at_quota == passes_) return std::nullopt;
          return quotas_.HasItsQuota(AsSequence(item)) ? ServiceClass::kBatch : own;
        }));
    if (next == nullptr) return nullptr;
    // It waits until its client, or all that are not interactive, own fewer slots. None of these
    // may overtake it.
    if (quotas_.BeyondQuota(*next) > 0) {
      queue_.account(*next)->at_quota = passes_;
    } else if (quotas_.BeyondOpenSlots(*next) > 0) {
      others_wait = true;
    } else if (next->group_size() <= slots_.free()) {
      return next;
    } else {
      kept_for_ = next;
      return nullptr;
    }
  }
}

// Kept states of sequences that come back are still in memory when others are parked.
int32_t ContinuousScheduler::ParkingRoom() const {
  return options_.max_parked - parked_ - static_cast<int32_t>(placement_.unparked.size());
}

// Chooses victims_, batch work to be parked for the sequence that is returned. Null: no waiting
// sequence may take slots from others, or they cannot be taken yet.
Sequence* ContinuousScheduler::MakeRoom(TimePoint now) {
  if (ParkingRoom() <= 0) return nullptr;
  const Sequence* const most = MostServed();
  if (most == nullptr) return nullptr;
  for (const bool by_age : {false, true}) {
    auto* next = static_cast<Sequence*>(
        queue_.Next(now, [&](const FairItem& item) -> std::optional<ServiceClass> {
          const bool firm = quotas_.GroupMayBeFirm(AsSequence(item));
          if (!by_age) return firm ? std::optional(item.service_class()) : std::nullopt;
          // A sequence that may take no slot must not block others.
          if (firm || !queue_.LessServed(item, *most)) return std::nullopt;
          const bool aged = queue_.Aged(item, ServiceClass::kBatch, now) < ServiceClass::kBatch;
          return aged ? std::optional(ServiceClass::kBatch) : std::nullopt;
        }));
    if (next == nullptr || !ChooseVictims(*next, by_age)) continue;
    const bool idle = std::all_of(victims_.begin(), victims_.end(),
                                  [](const Sequence* victim) { return victim->flights_ == 0; });
    for (Sequence* victim : victims_) victim->paused_ = !idle;
    return idle ? next : nullptr;
  }
  return nullptr;
}

// Whether it may give up its slot in the middle: it is not about to end, and has no followers.
bool ContinuousScheduler::GoesOn(const Sequence& sequence) {
  return (sequence.phase_ == Sequence::Phase::kPrompt && sequence.followers_.empty()) ||
         (sequence.phase_ == Sequence::Phase::kDecode && sequence.outputs_left_ > 0);
}

bool ContinuousScheduler::MayBeParked(const Sequence& sequence) {
  return GoesOn(sequence) && !sequence.firm_ && sequence.rows_left_ == 0;
}

// One of the sequences that may be parked, whose client has had the most.
const Sequence* ContinuousScheduler::MostServed() const {
  const Sequence* most = nullptr;
  for (const Sequence* sequence : live_) {
    if (!MayBeParked(*sequence)) continue;
    if (most == nullptr || queue_.LessServed(*most, *sequence)) most = sequence;
  }
  return most;
}

// Fills victims_ with a sequence for each slot that `next` lacks. Returns false if there are too
// few sequences to park, or if it lacks no slot.
bool ContinuousScheduler::ChooseVictims(const Sequence& next, bool by_age) {
  int32_t own = quotas_.BeyondQuota(next);  // from the client itself
  const int32_t lacking =
      std::max({next.group_size() - slots_.free(), own, quotas_.BeyondOpenSlots(next)});
  victims_.clear();
  if (lacking <= 0 || lacking > ParkingRoom()) return false;
  while (static_cast<int32_t>(victims_.size()) < lacking) {
    Sequence* const victim = ChooseVictim(next, by_age, own-- > 0);
    if (victim == nullptr) return false;
    victims_.push_back(victim);
  }
  return true;
}

// Returns waiting batch work that may use a slot which is kept for a group. Null if none waits, if
// it could not be parked for the group, or if the group can start once the lent slots are parked.
Sequence* ContinuousScheduler::Borrower(TimePoint now) {
  if (options_.strict_quotas || !quotas_.GroupMayBeFirm(*kept_for_)) return nullptr;
  const auto lent =
      static_cast<int32_t>(std::count_if(live_.begin(), live_.end(), [](const Sequence* sequence) {
        return GoesOn(*sequence) && !sequence->firm_;
      }));
  if (lent >= ParkingRoom() || slots_.free() + lent >= kept_for_->group_size()) return nullptr;
  return static_cast<Sequence*>(
      queue_.Next(now, [](const FairItem& item) -> std::optional<ServiceClass> {
        const bool may = item.service_class() == ServiceClass::kBatch &&
                         static_cast<const Sequence&>(item).group_size() == 1;
        return may ? std::optional(ServiceClass::kBatch) : std::nullopt;
      }));
}

// Chooses a sequence to park, which is not in victims_ yet. `own`: it must be of the client of
// `next`.
Sequence* ContinuousScheduler::ChooseVictim(const Sequence& next, bool by_age, bool own) const {
  Sequence* victim = nullptr;
  for (Sequence* sequence : live_) {
    if (!MayBeParked(*sequence)) continue;
    if (by_age && !queue_.LessServed(next, *sequence)) continue;
    if (own && queue_.account(next) != queue_.account(*sequence)) continue;
    if (std::find(victims_.begin(), victims_.end(), sequence) != victims_.end()) continue;
    if (victim != nullptr) {
      // A sequence that no step in flight names can be parked soonest.
      const bool later = sequence->flights_ > 0 && victim->flights_ == 0;
      const bool sooner = sequence->flights_ == 0 && victim->flights_ > 0;
      if (later || (!sooner && queue_.LessServed(*sequence, *victim))) continue;
    }
    victim = sequence;
  }
  return victim;
}

void ContinuousScheduler::Park(Sequence& sequence, TimePoint now) {
  placement_.parked.push_back({&sequence, sequence.slot_});
  LeaveLive(sequence);
  quotas_.RemoveParked(sequence);
  slots_.Release(sequence.slot_);
  sequence.slot_ = -1;
  sequence.phase_ = Sequence::Phase::kParked;
  ++parked_;
  queue_.PushFront(sequence, now);
}

void ContinuousScheduler::LeaveLive(Sequence& sequence) {
  live_.erase(std::find(live_.begin(), live_.end(), &sequence));
  turns_.Remove(sequence);
}

void ContinuousScheduler::Give(Sequence& sequence, TimePoint now) {
  // Followers were not in the queue, which is not empty while their leader waits.
  for (Sequence* follower : sequence.followers_) {
    queue_.Push(*follower, now);
    queue_.Serve(*follower, now);
    --waiting_followers_;
  }
  queue_.Serve(sequence, now);
  ChargeKeptSlots(sequence);
  Occupy(sequence);
  for (Sequence* follower : sequence.followers_) Occupy(*follower);
  if (sequence.followers_.empty()) return;
  ++unforked_;
  if (sequence.readable() == 0) Fork(sequence);
}

// The group waits no longer, so its client pays for the slots that stayed free for it. If it paid
// earlier, it could lose its turn, and with it the slots that were free already.
void ContinuousScheduler::ChargeKeptSlots(Sequence& sequence) {
  const int64_t kept = std::exchange(sequence.kept_slots_, 0);
  if (kept > 0) queue_.Charge(sequence, static_cast<double>(kept));
}

void ContinuousScheduler::Occupy(Sequence& sequence) {
  sequence.slot_ = slots_.Acquire();
  live_.push_back(&sequence);
  turns_.Add(sequence);
  if (sequence.phase_ == Sequence::Phase::kParked) {
    --parked_;
    sequence.rows_left_ = kQuantum;
    placement_.unparked.push_back(&sequence);
  } else {
    sequence.rows_left_ = 1;
    (sequence.follows() ? placement_.following : placement_.started).push_back(&sequence);
  }
  sequence.phase_ = sequence.follows()           ? Sequence::Phase::kFollows
                    : sequence.prompt_left() > 0 ? Sequence::Phase::kPrompt
                                                 : Sequence::Phase::kDecode;
  sequence.firm_ = quotas_.Add(sequence);
}

// A follower is removed: the others continue without it.
void ContinuousScheduler::Leave(Sequence& follower) {
  Sequence& leader = *std::exchange(follower.leader_, nullptr);
  std::vector<Sequence*>& others = leader.followers_;
  others.erase(std::find(others.begin(), others.end(), &follower));
  if (others.empty() && leader.slot_ >= 0) --unforked_;
}

// A leader is removed.
void ContinuousScheduler::Abandon(Sequence& leader) {
  if (leader.slot_ >= 0) --unforked_;
  for (Sequence* follower : std::exchange(leader.followers_, {})) {
    follower->leader_ = nullptr;
    abandoned_.push_back(follower);
  }
}

void ContinuousScheduler::ForkGroups() {
  for (Sequence* sequence : live_) {
    if (sequence->followers_.empty() || sequence->readable() > 0) continue;
    if (sequence->flights_ == 0) Fork(*sequence);
  }
}

void ContinuousScheduler::Fork(Sequence& leader) {
  --unforked_;
  leader.rows_left_ = std::max<int64_t>(leader.rows_left_, 1);  // the fork itself must come first
  for (Sequence* follower : std::exchange(leader.followers_, {})) {
    follower->leader_ = nullptr;
    follower->phase_ = Sequence::Phase::kPrompt;
    placement_.forked.push_back({&leader, follower});
  }
}

const Step* ContinuousScheduler::Schedule(int64_t prompt_budget, const StepCost& cost) {
  AFT_CHECK(in_flight() < options_.max_in_flight);
  if (retired_ != nullptr) spare_.push_back(std::move(retired_));
  if (spare_.empty()) spare_.push_back(std::make_unique<Flight>());
  std::unique_ptr<Flight> flight = std::move(spare_.back());
  spare_.pop_back();
  step_ = &flight->step;
  ClearRows();
  step_->sequences.clear();
  step_->prompt_tokens = 0;
  step_->shared = step_->small = false;

  bool streams_wait = false;  // for a token, whether or not they have a row
  for (Sequence* sequence : live_) {
    const bool paused = std::exchange(sequence->paused_, false);
    sequence->allowed_ = paused ? 0 : Runnable(*sequence);
    sequence->in_turn_ = false;
    if (sequence->decodes()) streams_wait = true;
  }
  if (!streams_wait) prompt_budget = kNoLimit;
  if (streams_wait) turns_.Share(prompt_budget, cost, *step_);
  prompts_.clear();
  for (Sequence* sequence : live_) {
    if (sequence->allowed_ == 0) continue;
    if (sequence->phase_ == Sequence::Phase::kPrompt) {
      prompts_.push_back(sequence);
    } else {
      AddDecodeRow(*sequence);
    }
  }
  const auto decodes = static_cast<int64_t>(step_->sequences.size());
  prompt_shares_.Share(prompt_budget, options_.max_step_tokens - decodes, prompts_);
  for (Sequence* sequence : prompts_) {
    if (sequence->chunk_ > 0) AddPromptRow(*sequence, sequence->chunk_);
  }
  step_->tokens = decodes + step_->prompt_tokens;
  if (step_->sequences.empty()) {
    spare_.push_back(std::move(flight));
    return nullptr;
  }
  in_flight_.push_back(std::move(flight));
  return step_;
}

const Step& ContinuousScheduler::Retire() {
  AFT_CHECK(!in_flight_.empty());
  if (retired_ != nullptr) spare_.push_back(std::move(retired_));
  retired_ = std::move(in_flight_.front());
  in_flight_.erase(in_flight_.begin());
  for (Sequence* sequence : retired_->step.sequences) {
    if (sequence != nullptr) --sequence->flights_;
  }
  for (const int32_t slot : retired_->releases) slots_.Release(slot);
  retired_->releases.clear();
  return retired_->step;
}

void ContinuousScheduler::Sampled(Sequence& sequence, TokenId token) {
  AFT_CHECK(sequence.phase_ == Sequence::Phase::kDecode && sequence.pending_ > 0);
  --sequence.pending_;
  sequence.next_token_ = token;
}

// The number of tokens that its next row could have.
int64_t ContinuousScheduler::Runnable(const Sequence& sequence) {
  if (sequence.phase_ == Sequence::Phase::kPrompt) {
    // A row with bans must be the only one of its sequence in flight (StepRow::banned).
    return !sequence.banned_.empty() && sequence.flights_ > 0 ? 0 : sequence.next_prompt_tokens();
  }
  if (!sequence.decodes()) return 0;
  return sequence.turn_.never_ahead && sequence.pending_ > 0 ? 0 : 1;
}

void ContinuousScheduler::AddDecodeRow(Sequence& sequence) {
  StepRow& row = AddRow(sequence, 1);
  row.tokens.push_back(sequence.pending_ > 0 ? kLastSampled : sequence.next_token_);
  AskForToken(sequence, row);
}

void ContinuousScheduler::AskForToken(Sequence& sequence, StepRow& row) {
  row.output = RowOutput::kLast;
  row.banned = sequence.banned_;
  ++sequence.pending_;
  --sequence.outputs_left_;
}

void ContinuousScheduler::AddPromptRow(Sequence& sequence, int64_t tokens) {
  AFT_CHECK(tokens <= sequence.next_prompt_tokens());
  const auto first =
      sequence.prompt_.begin() + (sequence.position_ - sequence.turn_.first_position);
  const bool scores = sequence.purpose_ == Sequence::Purpose::kScore
                          ? sequence.position_ >= sequence.turn_.asks_from
                          : sequence.scores_next();
  StepRow& row = AddRow(sequence, tokens);
  const auto last = first + tokens;
  row.tokens.assign(first, last);
  step_->prompt_tokens += tokens;
  const bool complete = sequence.prompt_left() == 0;
  if (scores) {
    row.output = RowOutput::kScore;
    row.targets.assign(first + 1, last == sequence.prompt_.end() ? last : last + 1);
  }
  if (sequence.purpose_ == Sequence::Purpose::kEncode &&
      sequence.position_ > sequence.turn_.asks_from) {
    row.output = RowOutput::kHidden;
    row.hidden = std::min(tokens, sequence.position_ - sequence.turn_.asks_from);
  }
  if (!complete) return;
  if (sequence.purpose_ == Sequence::Purpose::kGenerate) AskForToken(sequence, row);
  sequence.phase_ = sequence.purpose_ == Sequence::Purpose::kGenerate ? Sequence::Phase::kDecode
                                                                      : Sequence::Phase::kRead;
  std::vector<TokenId>().swap(sequence.prompt_);  // a decode must not keep a long prompt in memory
}

// Keeps the memory of decode rows, so that decoding allocates nothing.
void ContinuousScheduler::ClearRows() {
  for (StepRow& row : step_->input.rows) {
    if (row.tokens.size() > 1) continue;
    row.tokens.clear();
    row_tokens_.push_back(std::move(row.tokens));
  }
  step_->input.rows.clear();
}

StepRow& ContinuousScheduler::AddRow(Sequence& sequence, int64_t tokens) {
  step_->sequences.push_back(&sequence);
  StepRow& row = step_->input.rows.emplace_back();
  if (!row_tokens_.empty()) {
    row.tokens = std::move(row_tokens_.back());
    row_tokens_.pop_back();
  }
  row.slot = sequence.slot_;
  row.first_position = sequence.position_;
  sequence.position_ += tokens;
  ++sequence.flights_;
  if (sequence.rows_left_ > 0) --sequence.rows_left_;
  queue_.Charge(sequence, static_cast<double>(tokens));
  return row;
}

}  // namespace aft::server
