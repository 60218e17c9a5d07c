#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
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

// The calls that a test can let fail. kRestore is a BindSlot from an existing state.
enum class FakeCall { kSubmit, kCollect, kKeep, kRestore };

// Lets a test observe and control a FakeModelRunner while the engine owns the runner. Thread-safe.
class FakeModelControl : public StepGate {
 public:
  // The next such call fails with `status`.
  void FailNext(FakeCall call, absl::Status status = absl::InternalError("secret detail"));

  // Every step that was submitted, refused ones included.
  std::vector<StepInput> steps() const;
  int64_t step_count() const;
  // The rows of all steps together.
  int64_t row_count() const;
  // Stops recording the inputs, for long runs; steps and rows are still counted.
  void DropInputs();

  // Rules of model_runner.h that the caller broke; empty for a correct engine.
  std::vector<std::string> violations() const;

 private:
  friend class FakeModelRunner;

  void EnterStep(const StepInput& input);
  absl::Status TakeFailure(FakeCall call);
  void Violation(std::string text);

  mutable Mutex mutex_;
  bool record_inputs_ ABSL_GUARDED_BY(mutex_) = true;
  int64_t step_count_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t row_count_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<FakeCall, absl::Status> failures_ ABSL_GUARDED_BY(mutex_);
  std::vector<StepInput> steps_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> violations_ ABSL_GUARDED_BY(mutex_);
};

// A toy model. A slot's state is a hash of the tokens it has consumed and of their positions. The
// next token is a function of this hash, of the sampling seed, of the output's index, of rules for
// single tokens and, with penalties, of how often the sequence has had each token. The
// log-probability of a token is a function of the hash and the token. So a mixed-up slot, a lost or
// doubled token, a wrong position or a missing reset changes everything that follows.
class FakeModelRunner final : public ModelRunner {
 public:
  struct Options {
    int32_t slots = 4;
    int64_t max_step_tokens = 64;
    int64_t vocab_size = 257;
    int64_t max_seq_len = 0;
    int64_t state_bytes = sizeof(uint64_t);  // the hash, then zeros; at least 8
    int max_steps_in_flight = 1;
    uint64_t fingerprint = 1;
    std::string numerics = "fake";
    std::string tokenizer = "bytes";  // reported in ModelInfo
    bool generated_differ = false;    // reported in ModelInfo, but not true
    // Scripts the output: returns the token to sample after `count` consumed tokens with this
    // `hash`. If the rules do not permit it, the next permitted one is sampled. When it returns
    // kNoToken, nothing can be scored either, and the hidden vector is not finite. Null: NextToken.
    std::function<TokenId(uint64_t hash, int64_t count)> next_token;
    // Whether the sequence with this seed gets kNoToken at this output; null: never.
    std::function<bool(uint64_t seed, uint64_t output_index)> not_finite;
    const DeviceStats* device_stats = nullptr;  // must outlive the runner
  };

  FakeModelRunner(Options options, std::shared_ptr<FakeModelControl> control);

  // The hash of a sequence, token by token; start with kEmptyHash.
  static constexpr uint64_t kEmptyHash = 0;
  static uint64_t Consume(uint64_t hash, TokenId token, int64_t position);

  // A sequence without an engine. It computes what a correct engine must get, turn after turn.
  class Text {
   public:
    explicit Text(const Options& options) : options_(&options) {}

    void Read(const std::vector<TokenId>& tokens);
    // Samples and reads `count` tokens. The output since BeginOutput never has one of `bad_words`.
    std::vector<TokenId> Sample(const SamplingParams& params, int64_t count,
                                const std::vector<std::vector<TokenId>>& bad_words = {});
    // Begins a new turn: tokens sampled before belong to an earlier one.
    void BeginOutput();
    // Leaves out an output index: its token ended the output and is no part of the text.
    void SkipOutput() { ++outputs_; }
    // Reads these tokens as if they had been sampled.
    void Replay(const std::vector<TokenId>& output);
    // The score of `token` after the tokens that were read.
    SampledToken Score(TokenId token) const { return ScoreToken(hash_, token, 0); }

   private:
    void CountAndRead(TokenId token);

    const Options* options_;  // outlives the text
    uint64_t hash_ = kEmptyHash;
    int64_t position_ = 0;
    uint64_t outputs_ = 0;
    std::map<TokenId, uint32_t> had_;  // the tokens of the text, as TokenUse::sampled
    std::vector<TokenId> output_;      // its tokens are not counted in had_ yet
  };

  // What a correct engine gets for this prompt, computed without any batching.
  static std::vector<TokenId> Generate(const Options& options, const std::vector<TokenId>& prompt,
                                       const SamplingParams& params, int64_t count);

  // The hidden vectors of a text's tokens, computed without any batching. Each has kHiddenWidth
  // numbers, which are bytes of the hash.
  static constexpr int64_t kHiddenWidth = 3;
  static std::vector<float> Hidden(const std::vector<TokenId>& text);

  // The scores of a text's tokens from the second on, computed without any batching.
  static std::vector<SampledToken> Score(const std::vector<TokenId>& text, int32_t top_logprobs);

  const ModelInfo& info() const override { return info_; }
  const DeviceStats* device_stats() const override { return options_.device_stats; }
  int32_t slots() const override { return options_.slots; }
  int64_t max_step_tokens() const override { return options_.max_step_tokens; }
  int max_steps_in_flight() const override { return options_.max_steps_in_flight; }
  void PrepareThread() override { prepared_ = std::this_thread::get_id(); }
  absl::StatusOr<int64_t> BindSlot(int32_t slot, const StateSource& from,
                                   const SlotTerms& terms) override;
  absl::StatusOr<std::shared_ptr<const KeptState>> KeepSlot(int32_t slot, KeptIn memory) override;
  absl::StatusOr<Ticket> Submit(const StepInput& input) override;
  absl::Status Collect(Ticket ticket, StepOutput& output) override;

 private:
  struct Slot {
    bool bound = false;   // bound, and no step has named the slot since
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
  // The result of BindSlot, and the hash of the tokens that the sequence has consumed.
  absl::StatusOr<std::pair<int64_t, uint64_t>> StateOf(const StateSource& from) const;
  // The score of `target` after the tokens that `hash` stands for.
  static SampledToken ScoreToken(uint64_t hash, TokenId target, int32_t top_logprobs);
  // Notes a violation when a step in flight names the slot.
  void CheckIdle(const char* call, int32_t slot) const;
  // Checks the rules of every runner, and rules that real runners do not check.
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
