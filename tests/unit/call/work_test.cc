#include "server/call/work.h"

#include <cstddef>

#include "gtest/gtest.h"
#include "model/api/sampling_params.h"
#include "server/engine/request.h"

namespace aft::server {
namespace {

TEST(WorkTest, EachAnswerToEachOfSeveralPromptsHasUsesOfItsOwn) {
  Generations generations;
  generations.answers = 2;
  for (const size_t tokens : {5, 3}) {
    GenerationRequest prompt;
    prompt.prompt.assign(tokens, 1);
    prompt.sampling.frequency_penalty = 0.5F;
    generations.prompts.push_back(prompt);
  }
  EXPECT_EQ(UsesBytes(generations, 257), 2 * (5 + 3) * sizeof(TokenUse));
  EXPECT_EQ(UsesBytes(generations, 4), 2 * (4 + 3) * sizeof(TokenUse));
  for (GenerationRequest& prompt : generations.prompts) prompt.sampling.frequency_penalty = 0;
  EXPECT_EQ(UsesBytes(generations, 257), 0U);
}

}  // namespace
}  // namespace aft::server
