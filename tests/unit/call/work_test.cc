#include "server/call/work.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "model/api/model_runner.h"
#include "model/api/sampling_params.h"
#include "server/engine/request.h"
#include "server/engine/sequence_state.h"

namespace aft::server {
namespace {

ModelInfo InfoWith(int64_t vocab_size, int64_t max_seq_len = 0) {
  ModelInfo info;
  info.vocab_size = vocab_size;
  info.max_seq_len = max_seq_len;
  return info;
}

TEST(WorkTest, EachAnswerToEachOfSeveralPromptsHasUsesOfItsOwn) {
  Generations generations;
  generations.answers = 2;
  for (const size_t tokens : {5, 3}) {
    GenerationRequest prompt;
    prompt.prompt.assign(tokens, 1);
    prompt.sampling.frequency_penalty = 0.5F;
    generations.prompts.push_back(prompt);
  }
  EXPECT_EQ(EngineBytes(generations, 4, InfoWith(257)), 2 * (5 + 3) * sizeof(TokenUse));
  EXPECT_EQ(EngineBytes(generations, 4, InfoWith(4)), 2 * (4 + 3) * sizeof(TokenUse));
  for (GenerationRequest& prompt : generations.prompts) prompt.sampling.frequency_penalty = 0;
  EXPECT_EQ(EngineBytes(generations, 4, InfoWith(257)), 0U);
}

TEST(WorkTest, EachAnswerWithPenaltiesHoldsRoomForTheIdsOfItsOutput) {
  GenerationRequest request;
  request.prompt = {1, 2, 3};
  const size_t uses = 3 * sizeof(TokenUse);
  request.stop.max_tokens = 1000;
  EXPECT_EQ(EngineBytes(request, 1, InfoWith(257)), 0U);
  request.sampling.presence_penalty = 0.5F;
  // A vector that grows may take twice the memory of its elements.
  EXPECT_EQ(EngineBytes(request, 1, InfoWith(257)), uses + 2 * 1000 * sizeof(TokenId));
  EXPECT_EQ(EngineBytes(request, 4, InfoWith(257)), uses + 4 * 2 * 1000 * sizeof(TokenId));
  EXPECT_EQ(EngineBytes(request, 1, InfoWith(257, /*max_seq_len=*/10)),
            uses + 2 * 7 * sizeof(TokenId));
  // The output may be as long if the request brings a part of it.
  request.resumed = 2;
  EXPECT_EQ(EngineBytes(request, 1, InfoWith(257, /*max_seq_len=*/10)),
            uses + 2 * 9 * sizeof(TokenId));
  EXPECT_EQ(EngineBytes(Generations{{request, request}, 3}, 6, InfoWith(257)),
            2 * 3 * (uses + 2 * 1000 * sizeof(TokenId)));
}

TEST(WorkTest, ATextThatBeginsFromATunedStateHoldsRoomForACopy) {
  const auto tuned = std::make_shared<SequenceState>();
  tuned->initial = 1;
  GenerationRequest request;
  request.prompt = {1, 2, 3};
  request.previous = tuned;
  EXPECT_EQ(EngineBytes(request, 2, InfoWith(257)), 4 * sizeof(TokenId));
  EXPECT_EQ(EngineBytes(Generations{{request}, 2}, 2, InfoWith(257)), 2 * 4 * sizeof(TokenId));
  ScoringRequest text;
  text.text = {1, 2};
  text.previous = tuned;
  EXPECT_EQ(EngineBytes(std::vector<ScoringRequest>{text}, 1, InfoWith(257)), 3 * sizeof(TokenId));
}

}  // namespace
}  // namespace aft::server
