#include "model/runtime/numerics.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "model/state/xxhash64.h"

namespace aft {
namespace {

absl::StatusOr<StepOutput> Run(StepRow row, ModelRunner& runner) {
  StepInput input;
  input.rows.push_back(std::move(row));
  StepOutput output;
  AFT_ASSIGN_OR_RETURN(const ModelRunner::Ticket ticket, runner.Submit(input));
  AFT_RETURN_IF_ERROR(runner.Collect(ticket, output));
  return output;
}

void Append(const SampledToken& token, std::string& bytes) {
  bytes.append(reinterpret_cast<const char*>(&token.id), sizeof(token.id));
  bytes.append(reinterpret_cast<const char*>(&token.logprob), sizeof(token.logprob));
}

}  // namespace

absl::StatusOr<std::string> DescribeNumerics(absl::string_view instruction_set,
                                             ModelRunner& runner) {
  constexpr int64_t kTokens = 24;
  const ModelInfo& info = runner.info();
  const int64_t tokens = info.max_seq_len > 0 ? std::min(info.max_seq_len, kTokens) : kTokens;
  const auto token = [&info](int64_t i) {
    return static_cast<TokenId>((37 * i + 11) % info.vocab_size);
  };
  SamplingParams params;
  params.top_logprobs = 0;
  AFT_RETURN_IF_ERROR(runner.BindSlot(0, NewSequence(), {params}).status());
  std::string results;
  for (int64_t position = 0; position < tokens - 1;) {
    StepRow row = {0, position, {}, RowOutput::kScore};
    for (; position < tokens - 1 &&
           static_cast<int64_t>(row.tokens.size()) < runner.max_step_tokens();
         ++position) {
      row.tokens.push_back(token(position));
      row.targets.push_back(token(position + 1));
    }
    AFT_ASSIGN_OR_RETURN(const StepOutput output, Run(std::move(row), runner));
    for (const SampledToken& scored : output.scored.front()) Append(scored, results);
  }
  AFT_ASSIGN_OR_RETURN(const StepOutput output,
                       Run({0, tokens - 1, {token(tokens - 1)}, RowOutput::kLast}, runner));
  Append(output.sampled.front(), results);
  AFT_RETURN_IF_ERROR(runner.BindSlot(0, NewSequence(), {}).status());
  return absl::StrFormat("cpu, %s, %s, %016x", instruction_set, info.weight_format,
                         XxHash64(results, 0));
}

}  // namespace aft
