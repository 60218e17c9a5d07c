#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "model/api/model_runner.h"
#include "model/api/sampling_params.h"
#include "model/runtime/step_rules.h"
#include "model/sampling/penalties.h"
#include "tests/support/step_gate.h"

namespace aft {

// What a test sees of a FakeModelRunner, and how it controls it, while the engine owns the runner.
// Thread-safe.
class FakeModelControl : public StepGate {
 public:
  // The next Submit, or the next Collect, fails with `status`.
  void FailNextSubmit(absl::Status status);
  void FailNextCollect(absl::Status status);
  // The next snapshot is empty; the next slot does not get the state that it is to begin from.
  void FailNextSnapshot();
  void FailNextRestore();

  // Every step that was submitted, refused ones included.
  std::vector<StepInput> steps() const;
  int64_t step_count() const;
  // Stop recording the inputs, for long runs; step_count goes on.
  void DropInputs();

  // Rules of model_runner.h that the caller broke; empty for a correct engine.
  std::vector<std::string> violations() const;

 private:
  friend class FakeModelRunner;

  void EnterStep(const StepInput& input);
  absl::Status TakeSubmitFailure();
  absl::Status TakeCollectFailure();
  bool TakeSnapshotFailure();
  bool TakeRestoreFailure();
  void Violation(std::string text);

  mutable Mutex mutex_;
  bool record_inputs_ ABSL_GUARDED_BY(mutex_) = true;
  int64_t step_count_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status submit_failure_ ABSL_GUARDED_BY(mutex_);
  absl::Status collect_failure_ ABSL_GUARDED_BY(mutex_);
  bool snapshot_failure_ ABSL_GUARDED_BY(mutex_) = false;
  bool restore_failure_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<StepInput> steps_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> violations_ ABSL_GUARDED_BY(mutex_);
};

// A toy model: a slot's state is a hash of the tokens it has consumed and their positions, and the
// next token is a function of it, of the sampling seed, of the output's index, of rules for single
// tokens and, with penalties, of what the sequence has had of each token, as the log-probability of
// a given token is of the hash. So a mixed-up slot, a lost or doubled token, a wrong position or a
// missing reset changes everything that follows.
class FakeModelRunner final : public ModelRunner {
 public:
  struct Options {
    int32_t slots = 4;
    int64_t max_step_tokens = 64;
    int64_t vocab_size = 257;
    int64_t max_seq_len = 0;
    int64_t state_bytes = sizeof(uint64_t);  // the hash, and zeros; at least 8
    int max_steps_in_flight = 1;
    uint64_t fingerprint = 1;
    std::string numerics = "fake";
    bool generated_differ = false;  // only said so
    // The next token that the rules leave, from this one on, after these `count` consumed tokens'
    // `hash`; null: NextToken. For scripted output. Where it is kNoToken, nothing can be scored
    // either, and the hidden vector is not finite.
    std::function<TokenId(uint64_t hash, int64_t count)> next_token;
    // Where the sequence with that seed has no such output; null: nowhere.
    std::function<bool(uint64_t seed, uint64_t output_index)> not_finite;
    const DeviceStats* device_stats = nullptr;  // must outlive the runner
  };

  FakeModelRunner(Options options, std::shared_ptr<FakeModelControl> control);

  // The hash of a sequence, token by token; start with kEmptyHash.
  static constexpr uint64_t kEmptyHash = 0;
  static uint64_t Consume(uint64_t hash, TokenId token, int64_t position);

  // A sequence without an engine: what a correct one must get, turn after turn.
  class Text {
   public:
    explicit Text(const Options& options)
        : options_(&options), counts_(static_cast<size_t>(options.vocab_size), 0) {}

    void Read(const std::vector<TokenId>& tokens);
    // `count` tokens, each of them read. `bad_words`: that the output since BeginOutput never has.
    std::vector<TokenId> Sample(const SamplingParams& params, int64_t count,
                                const std::vector<std::vector<TokenId>>& bad_words = {});
    // What was sampled before is of an earlier turn.
    void BeginOutput() { output_.clear(); }
    // These are read, as if they had been sampled.
    void Replay(const std::vector<TokenId>& output);
    // The score of `token` behind what was read.
    SampledToken Score(TokenId token) const { return ScoreToken(hash_, token, 0); }

   private:
    void CountAndRead(TokenId token);

    const Options* options_;  // outlives the text
    uint64_t hash_ = kEmptyHash;
    int64_t position_ = 0;
    uint64_t outputs_ = 0;
    std::vector<TokenCount> counts_;
    std::vector<TokenId> output_;
  };

  // What a correct engine gets for this prompt, computed without any batching.
  static std::vector<TokenId> Generate(const Options& options, const std::vector<TokenId>& prompt,
                                       const SamplingParams& params, int64_t count);

  // The hidden vectors of a text's tokens, likewise: of each, kHiddenWidth numbers of the hash.
  static constexpr int64_t kHiddenWidth = 3;
  static std::vector<float> Hidden(const std::vector<TokenId>& text);

  // The scores of a text's tokens from the second on, likewise.
  static std::vector<SampledToken> Score(const std::vector<TokenId>& text, int32_t top_logprobs);

  const ModelInfo& info() const override { return info_; }
  const DeviceStats* device_stats() const override { return options_.device_stats; }
  int32_t slots() const override { return options_.slots; }
  int64_t max_step_tokens() const override { return options_.max_step_tokens; }
  int max_steps_in_flight() const override { return options_.max_steps_in_flight; }
  void PrepareThread() override { prepared_ = std::this_thread::get_id(); }
  absl::StatusOr<int64_t> BindSlot(int32_t slot, const StateSource& from,
                                   const SlotTerms& terms) override;
  std::shared_ptr<const KeptState> KeepSlot(int32_t slot) override;
  std::string SnapshotSlot(int32_t slot) const override;
  absl::StatusOr<Ticket> Submit(const StepInput& input) override;
  absl::Status Collect(Ticket ticket, StepOutput& output) override;

 private:
  struct Slot {
    bool bound = false;   // and not named by a step since
    bool banned = false;  // the last row has bans
    uint64_t hash = kEmptyHash;
    std::vector<TokenCount> counts;  // empty without penalties
  };

  // A step that is not collected yet.
  struct Flight {
    Ticket ticket = 0;
    std::vector<int32_t> slots;
    StepOutput output;
  };

  // `counts`: read with penalties only.
  static TokenId NextToken(const Options& options, uint64_t hash, int64_t count,
                           const SamplingParams& params, uint64_t output_index,
                           const std::vector<TokenCount>& counts,
                           const std::vector<TokenId>& banned);
  // BindSlot's, and the hash of what the sequence has consumed.
  absl::StatusOr<std::pair<int64_t, uint64_t>> StateOf(const StateSource& from) const;
  // Of `target` after the tokens that `hash` stands for.
  static SampledToken ScoreToken(uint64_t hash, TokenId target, int32_t top_logprobs);
  // Notes a violation when a step in flight names the slot.
  void CheckIdle(const char* call, int32_t slot) const;
  // The rules of every runner, and those that only the caller can know it broke.
  absl::Status Check(const StepInput& input);

  const Options options_;
  const std::shared_ptr<FakeModelControl> control_;
  ModelInfo info_;
  StepRules sequences_;
  std::vector<Slot> slots_;
  std::deque<Flight> flights_;
  Ticket last_ticket_ = 0;
  std::thread::id prepared_;
};

}  // namespace aft
