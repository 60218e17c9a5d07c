#include "model/gpu/gpu_step_plan.h"

#include <algorithm>
#include <utility>

namespace aft {

int32_t DeviceTopLogprobs(const SamplingParams& params) {
  return std::min(params.top_logprobs, kMaxTopLogprobs);
}

int32_t LookaheadAges::Step(int32_t slot, int64_t position) {
  if (rows_ == 0) return -1;
  int64_t& made_at = made_at_[static_cast<size_t>(slot)];
  if (made_at < 0 || position <= made_at || position - made_at >= rows_) made_at = position;
  return static_cast<int32_t>(position - made_at);
}

void GpuStepPlan::Measure(const StepInput& input) {
  shape_ = {};
  longest_ = 0;
  for (const StepRow& row : input.rows) {
    const auto tokens = static_cast<int64_t>(row.tokens.size());
    shape_.tokens += tokens;
    ++(tokens == 1 ? shape_.decode : shape_.chunks);
    longest_ = std::max(longest_, tokens);
    shape_.outputs +=
        row.output == RowOutput::kLast ? 1 : static_cast<int64_t>(row.targets.size()) + row.hidden;
  }
}

void GpuStepPlan::Pad(const GpuStepShape& shape) {
  shape_ = shape;
  longest_ = shape.chunks > 0 ? shape.chunk_tokens() : 1;
}

// The step's own rows and tokens come first.
void GpuStepPlan::FillPadding(int64_t decode, int64_t chunks, int64_t chunk_tokens,
                              GpuStepInput* in) const {
  const auto pad_tokens = [in](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      in->tokens[i] = 0;
      in->token_slots[i] = -1;
      in->token_positions[i] = 0;
    }
  };
  pad_tokens(decode, shape_.decode);
  for (int64_t i = decode; i < shape_.decode; ++i) {
    in->decode_slot[i] = -1;
    in->decode_position[i] = 0;
    in->decode_age[i] = -1;
    in->decode_generated[i] = 0;
  }
  if (shape_.chunks == 0) return;
  // All padding tokens belong to the last chunk; the chunks before it are empty.
  pad_tokens(shape_.decode + chunk_tokens, shape_.tokens);
  for (int64_t i = chunks; i < shape_.chunks; ++i) {
    in->chunk_slot[i] = -1;
    in->chunk_position[i] = 0;
    in->chunk_generated[i] = 0;
    in->chunk_offset[i] = chunk_tokens;
  }
  in->chunk_offset[shape_.chunks] = shape_.chunk_tokens();
}

void GpuStepPlan::MakeRoom(const StepInput& input) {
  result_.sampled.clear();  // removes everything of the previous step
  result_.scored.clear();
  result_.hidden.clear();
  size_t sampled = 0;
  for (const StepRow& row : input.rows) {
    if (row.output == RowOutput::kLast) ++sampled;
    if (row.output == RowOutput::kScore) result_.scored.emplace_back(row.targets.size());
  }
  result_.sampled.resize(sampled);
}

void GpuStepPlan::Fill(const StepInput& input, StepRules* sequences, LookaheadAges* ages,
                       void* block) {
  GpuStepInput in(shape_, block);
  std::fill_n(in.output_slot, shape_.outputs, -1);
  std::fill_n(in.output_index, shape_.outputs, 0);
  std::fill_n(in.target, shape_.outputs, kNoToken);
  wanted_.clear();
  hidden_.clear();
  hidden_outputs_ = 0;
  marks_seen_ = false;
  wants_top_ = false;
  MakeRoom(input);

  const bool chunks = shape_.chunks > 0;
  if (chunks) std::fill_n(in.outputs, shape_.outputs, -1);
  int64_t output = 0;
  const auto want = [&](int32_t slot, int64_t token, TokenId target, SampledToken* result) {
    // Without chunks every token has an output, wanted or not.
    const int64_t at = chunks ? output++ : token;
    if (chunks) in.outputs[at] = token;
    SequenceRecord& sequence = sequences->sequence(slot);
    int32_t top = DeviceTopLogprobs(sequence.params);
    if (target == kNoToken) {
      in.output_index[at] = sequence.sampled++;
    } else {
      top = std::max(top, 0);
    }
    in.output_slot[at] = slot;
    in.target[at] = target;
    wants_top_ = wants_top_ || top > 0;
    wanted_.push_back({at, slot, target, top, result});
  };

  int64_t decode = 0;
  int64_t chunk = 0;
  int64_t chunk_tokens = 0;
  size_t sampled = 0;
  size_t scored = 0;
  for (const StepRow& row : input.rows) {
    const auto tokens = static_cast<int64_t>(row.tokens.size());
    const uint8_t generated = sequences->sequence(row.slot).generates() ? 1 : 0;
    int64_t first = decode;
    if (tokens == 1) {
      const TokenId token = row.tokens[0];
      marks_seen_ = marks_seen_ ||
                    (token != kLastSampled && token != sequences->sequence(row.slot).last_sampled);
      in.decode_slot[decode] = row.slot;
      in.decode_position[decode] = row.first_position;
      in.decode_generated[decode] = generated;
      in.decode_age[decode] = ages->Step(row.slot, row.first_position);
      ++decode;
    } else {
      first = shape_.decode + chunk_tokens;
      in.chunk_slot[chunk] = row.slot;
      in.chunk_position[chunk] = row.first_position;
      in.chunk_generated[chunk] = generated;
      in.chunk_offset[chunk] = chunk_tokens;
      marks_seen_ = true;
      ages->Forget(row.slot);
      chunk_tokens += tokens;
      ++chunk;
    }
    std::copy(row.tokens.begin(), row.tokens.end(), in.tokens + first);
    for (int64_t i = 0; i < tokens; ++i) {
      in.token_slots[first + i] = row.slot;
      in.token_positions[first + i] = row.first_position + i;
    }
    if (row.output == RowOutput::kLast) {
      want(row.slot, first + tokens - 1, kNoToken, &result_.sampled[sampled++]);
    } else if (row.output == RowOutput::kScore) {
      std::vector<SampledToken>& results = result_.scored[scored++];
      for (size_t i = 0; i < results.size(); ++i) {
        want(row.slot, first + static_cast<int64_t>(i), row.targets[i], &results[i]);
      }
    } else if (row.output == RowOutput::kHidden) {
      // Nothing is sampled there, so outputs have no slot. Without chunks the row is one token.
      const int64_t from = first + tokens - row.hidden;
      hidden_.push_back({chunks ? output : from, row.hidden});
      for (int64_t i = 0; chunks && i < row.hidden; ++i) in.outputs[output++] = from + i;
      hidden_outputs_ = std::max(hidden_outputs_, hidden_.back().first + row.hidden);
    }
  }
  FillPadding(decode, chunk, chunk_tokens, &in);
}

void GpuStepPlan::Read(void* block, const at::Tensor& hidden, StepRules* sequences,
                       StepOutput& output) {
  const GpuStepOutput out(shape_.outputs, block);
  for (const Wanted& wanted : wanted_) {
    SampledToken& token = *wanted.token;
    const TokenId id = out.id[wanted.output];
    token.id = id == kNoToken || wanted.target == kNoToken ? id : wanted.target;
    if (id == kNoToken) continue;
    if (wanted.target == kNoToken) sequences->sequence(wanted.slot).last_sampled = id;
    if (wanted.top < 0) continue;
    token.logprob = out.logprob[wanted.output];
    const int64_t first = wanted.output * int64_t{kMaxTopLogprobs};
    for (int64_t i = first; i < first + wanted.top && out.top_id[i] != kNoToken; ++i) {
      token.top.push_back({out.top_id[i], out.top_logprob[i]});
    }
  }
  for (const Hidden& row : hidden_) {
    const float* const from = hidden.const_data_ptr<float>() + row.first * hidden.size(1);
    result_.hidden.emplace_back(from, from + row.count * hidden.size(1));
  }
  std::swap(output, result_);
}

}  // namespace aft
