// The tensors that encoders and bare mixers refuse, and their errors, over real gRPC.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/integration/oip/tensors.h"

namespace aft::server {
namespace {

TEST(OipTensorsErrorsTest, ErrorsOfABareMixerNameTheTensor) {
  FakeEncoderRunner::Options options = BareMixer();
  options.max_seq_len = 40;
  OipServer server(TestConfigWithEncoder(), {}, options);
  constexpr int64_t kHuge = int64_t{1} << 62;
  InferBuilder pooling = Row(1);
  pooling.Parameter("pooling").set_string_param("mean");
  const auto masked = [](const char* datatype, const std::vector<int64_t>& shape,
                         const std::string& bytes) {
    return Row(2).Raw("attention_mask", datatype, shape, bytes);
  };
  ExpectRefused(
      server,
      {{"inputs_embeds: must be given", InferBuilder("encoder")},
       {"inputs_embeds: must be of shape [B, T, 3], got [1, 2, 4]", Vectors({1, 2, 4}, Count(8))},
       {"inputs_embeds: must be of shape [B, T, 3], got [2, 3]", Vectors({2, 3}, Count(6))},
       {"inputs_embeds: must be of shape [B, T, 3], got [1, 1, 1, 3]",
        Vectors({1, 1, 1, 3}, Count(3))},
       {"inputs_embeds: must be of shape [B, T, 3], got []", Vectors({}, Count(1))},
       {"inputs_embeds: must have 1 to 4 rows (max_batch_size), got 5",
        Vectors({5, 1, 3}, Count(15))},
       {"inputs_embeds: must have 1 to 4 rows (max_batch_size), got 0", Vectors({0, 1, 3}, {})},
       {"inputs_embeds: must have 1 to 4 rows", Vectors({0, kHuge, 3}, {})},
       {"inputs_embeds: must not be empty", Vectors({1, 0, 3}, {})},
       {"inputs_embeds: shape [4, 4611686018427387904, 3] has too many elements",
        Vectors({4, kHuge, 3}, {})},
       {"inputs_embeds: shape [1, 1537228672809129301, 3] of FP32 asks for more bytes than there",
        Vectors({1, (int64_t{1} << 62) / 3, 3}, {})},
       {"inputs_embeds: no dimension may be below 0", Vectors({1, -1, 3}, {})},
       {"inputs_embeds: shape [1, 2, 3] of FP32 asks for 24 bytes, got 20",
        Vectors({1, 2, 3}, Count(5))},
       {"inputs_embeds: must have at most 40 tokens (the model's max_seq_len), got 41",
        Vectors({1, 41, 3}, Count(123))},
       {"inputs_embeds: must be FP32 or BF16, got FP64",
        InferBuilder("encoder").Raw("inputs_embeds", "FP64", {1, 1, 3}, std::string(24, '\0'))},
       {"inputs_embeds: must be FP32 or BF16, got INT32",
        InferBuilder("encoder").Raw("inputs_embeds", "INT32", {1, 1, 3}, std::string(12, '\0'))},
       {"attention_mask: must have a number for each key, [1, 2], or for each pair of a query and "
        "a "
        "key, [2, 2, 1] or [1, 1, 2, 2], got [1, 3]",
        masked("BOOL", {1, 3}, "\1\1\1")},
       {"attention_mask: must have a number for each key", masked("BOOL", {2}, "\1\1")},
       {"attention_mask: must have a number for each key",
        masked("BOOL", {2, 2, 2}, std::string(8, '\1'))},
       {"attention_mask[0][1]: must be 0 or 1, got 2", masked("BOOL", {1, 2}, "\1\2")},
       {"attention_mask[0][0]: must be 0 or 1, got -1",
        masked("INT64", {1, 2}, RawOf<int64_t>({-1, 1}))},
       {"attention_mask[0][1]: must be a finite number or -inf",
        masked("FP32", {1, 2}, RawOf<float>({0, kNan}))},
       {"attention_mask[0][0]: must be a finite number or -inf",
        masked("FP32", {1, 2}, RawOf<float>({HUGE_VALF, 0}))},
       {"attention_mask: must be BOOL, INT64, INT32 or FP32, got FP64",
        masked("FP64", {1, 2}, std::string(16, '\0'))},
       {"attention_mask: is given twice",
        masked("BOOL", {1, 2}, "\1\1").Raw("attention_mask", "BOOL", {1, 2}, "\1\1")},
       {"input_ids: is no input of model \"encoder\"",
        InferBuilder("encoder").Raw("input_ids", "INT64", {1, 1}, RawOf<int64_t>({0}))},
       {"text_input: is no input of model", Row(1).Text("text_input", "x")},
       {"embedding: is no output of model", Row(1).Output("embedding")},
       {"parameters.pooling: there is no such parameter", pooling}});
}

TEST(OipTensorsErrorsTest, ErrorsOfImagesNameTheTensor) {
  OipServer server(TestConfigWithEncoder(), {}, BareMixer(/*causal=*/false, 5));
  ExpectRefused(
      server,
      {{"inputs_embeds: must be of shape [B, H, W, 3], got [1, 6, 3]", Row(6)},
       {"inputs_embeds: must have at most 5 columns (W), got 6", Vectors({1, 1, 6, 3}, Count(18))},
       {"inputs_embeds: must not be empty", Vectors({1, 0, 5, 3}, {})},
       {"inputs_embeds: must not be empty", Vectors({1, 5, 0, 3}, {})},
       {"inputs_embeds: must have at most 64 tokens a row (the model's batch.max_tokens), got 65",
        Vectors({1, 13, 5, 3}, Count(195))},
       {"attention_mask[0][0]: must be visible",
        Vectors({1, 2, 2, 3}, Count(12))
            .Raw("attention_mask", "BOOL", {4, 4}, std::string(16, '\0'))},
       {"attention_mask: must have a number for each key",
        Vectors({1, 2, 2, 3}, Count(12))
            .Raw("attention_mask", "BOOL", {2, 2}, std::string(4, '\1'))}});
}

}  // namespace
}  // namespace aft::server
