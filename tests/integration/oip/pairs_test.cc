// Separate queries, keys and values, masks of pairs, and an encoder's masks with holes: which parts
// of ModelInfer reach the model, and how it refuses all others. Over real gRPC, with a fake model.
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/oip/tensors.h"

namespace aft::server {
namespace {

using ::testing::ElementsAre;

constexpr EncoderForms kForms = {.pairs = true, .sources = true, .free_lengths = true};

FakeEncoderRunner::Options Mixer(bool causal = false, EncoderForms forms = kForms) {
  FakeEncoderRunner::Options options = BareMixer(causal);
  options.forms = forms;
  return options;
}

InferBuilder& Add(InferBuilder& builder, const std::string& name, const std::vector<int64_t>& shape,
                  float first) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return builder.Raw(name, "FP32", shape, RawOf(Count(count, first)));
}

// The shape of query is [rows, queries, 3], that of key and value [rows, keys, 3].
InferBuilder Apart(int64_t rows, int64_t queries, int64_t keys) {
  InferBuilder builder("encoder");
  Add(builder, "query", {rows, queries, 3}, 1);
  Add(builder, "key", {rows, keys, 3}, 0.5F);
  Add(builder, "value", {rows, keys, 3}, -2);
  return builder;
}
EncoderInput RowApart(int64_t row, int64_t queries, int64_t keys) {
  const auto at = [row](float first, int64_t tokens) {
    return first + static_cast<float>(row * tokens * 3);
  };
  return {.vectors = Count(queries * 3, at(1, queries)),
          .keys = Count(keys * 3, at(0.5F, keys)),
          .values = Count(keys * 3, at(-2, keys))};
}

PairMask Pairs(std::vector<float> pairs) {
  return std::make_shared<const std::vector<float>>(std::move(pairs));
}

TEST(OipPairsTest, QueriesKeysAndValuesMayBeSeparate) {
  OipServer server(TestConfigWithEncoder(), {}, Mixer());
  for (const int64_t keys : {2, 5}) {
    const auto answer = server.Infer(Apart(2, 2, keys).request());
    EXPECT_EQ(Hidden(answer), Want({RowApart(0, 2, keys), RowApart(1, 2, keys)}));
    EXPECT_THAT(ShapeOf(answer.response, "last_hidden_state"), ElementsAre(2, 2, 3));
  }
  // A mask of keys has one number for each key.
  EncoderInput row = RowApart(0, 2, 3);
  row.mask = {0, kHidden, 0};
  EXPECT_EQ(Hidden(server.Infer(Apart(1, 2, 3)
                                    .Raw("attention_mask", "BOOL", {1, 3}, std::string("\1\0\1", 3))
                                    .request())),
            Want({row}));
  EncoderForms keyless = kForms;
  keyless.keyless = true;
  OipServer location(TestConfigWithEncoder(), {}, Mixer(true, keyless));
  InferBuilder builder("encoder");
  Add(builder, "query", {1, 2, 3}, 1);
  Add(builder, "value", {1, 2, 3}, 7);
  EXPECT_EQ(Hidden(location.Infer(builder.request())),
            Want({{.vectors = Count(6), .values = Count(6, 7)}}));
  server.WaitForMetric("aft_memory_used_bytes", 0);
}

TEST(OipPairsTest, MasksOfPairsMayHaveTheShapesOfLabmlAndLsg) {
  OipServer server(TestConfigWithEncoder(), {}, Mixer());
  // The masks of rows 0 and 1, in the order of query, key.
  const std::vector<float> masks[] = {{0, kHidden, 0, 0, 0, kHidden},
                                      {kHidden, 0, 0, 0, kHidden, 0}};
  const auto with = [&](const char* datatype, const std::vector<int64_t>& shape,
                        const std::string& bytes) {
    return Hidden(
        server.Infer(Apart(2, 2, 3).Raw("attention_mask", datatype, shape, bytes).request()));
  };
  EncoderInput rows[] = {RowApart(0, 2, 3), RowApart(1, 2, 3)};
  for (int row = 0; row < 2; ++row) rows[row].pairs = Pairs(masks[row]);
  const std::vector<float> expected = Want({rows[0], rows[1]});
  std::string lsg;    // in the order of row, 1, query, key
  std::string labml;  // in the order of query, key, row
  std::vector<float> numbers;
  for (const std::vector<float>& mask : masks) {
    for (const float pair : mask) lsg += pair == 0 ? '\1' : '\0';
    numbers.insert(numbers.end(), mask.begin(), mask.end());
  }
  for (size_t pair = 0; pair < 6; ++pair) {
    for (const std::vector<float>& mask : masks) labml += mask[pair] == 0 ? '\1' : '\0';
  }
  EXPECT_EQ(with("BOOL", {2, 1, 2, 3}, lsg), expected);
  EXPECT_EQ(with("BOOL", {2, 3, 2}, labml), expected);
  EXPECT_EQ(with("FP32", {2, 1, 2, 3}, RawOf(numbers)), expected);
  // One mask is shared by all rows.
  rows[1].pairs = rows[0].pairs;
  const std::vector<float> shared = Want({rows[0], rows[1]});
  EXPECT_EQ(with("BOOL", {1, 1, 2, 3}, lsg.substr(0, 6)), shared);
  EXPECT_EQ(with("BOOL", {2, 3, 1}, lsg.substr(0, 6)), shared);
  EXPECT_EQ(with("INT64", {2, 3, 1}, RawOf<int64_t>({1, 0, 1, 1, 1, 0})), shared);
  rows[0].pairs = rows[1].pairs = Pairs({0.5F, -1, 0, 2, -0.25F, 0});
  EXPECT_EQ(with("FP32", {1, 1, 2, 3}, RawOf(*rows[0].pairs)), Want({rows[0], rows[1]}));
  server.WaitForMetric("aft_memory_used_bytes", 0);
}

TEST(OipPairsTest, ACausalModelAcceptsMasksThatHideTheFuture) {
  OipServer server(TestConfigWithEncoder(), {}, Mixer(/*causal=*/true, {.pairs = true}));
  const auto with = [&](const std::string& mask) {
    return server.Infer(Row(3).Raw("attention_mask", "BOOL", {3, 3, 1}, mask).request());
  };
  EXPECT_EQ(Hidden(with(std::string("\1\0\0\1\1\0\1\1\1", 9))), Want({{.vectors = Count(9)}}));
  EXPECT_EQ(Hidden(with(std::string("\1\0\0\1\1\0\1\0\1", 9))),
            Want({{.vectors = Count(9),
                   .pairs = Pairs({0, kHidden, kHidden, 0, 0, kHidden, 0, kHidden, 0})}}));
  EXPECT_THAT(with(std::string("\1\0\0\1\1\1\1\1\1", 9)).status,
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "attention_mask[1][2][0]: must be hidden: the model is causal, and the key "
                       "comes later"));
}

TEST(OipPairsTest, ErrorsNameTheTensor) {
  OipServer server(TestConfigWithEncoder(), {}, Mixer());
  const auto masked = [](const char* datatype, const std::vector<int64_t>& shape,
                         const std::string& bytes) {
    return Apart(2, 2, 3).Raw("attention_mask", datatype, shape, bytes);
  };
  InferBuilder both = Row(2);
  Add(both, "key", {1, 2, 3}, 1);
  InferBuilder two = Row(2);
  Add(two, "query", {1, 2, 3}, 1);
  InferBuilder no_key("encoder");
  Add(Add(no_key, "query", {1, 2, 3}, 1), "value", {1, 2, 3}, 1);
  InferBuilder no_value("encoder");
  Add(Add(no_value, "query", {1, 2, 3}, 1), "key", {1, 2, 3}, 1);
  const auto apart = [](const std::vector<int64_t>& key, const std::vector<int64_t>& value) {
    InferBuilder builder("encoder");
    Add(builder, "query", {2, 2, 3}, 1);
    Add(builder, "key", key, 1);
    Add(builder, "value", value, 1);
    return builder;
  };
  ExpectRefused(
      server,
      {{"inputs_embeds: exactly one of inputs_embeds, query must be given, got 0",
        InferBuilder("encoder")},
       {"inputs_embeds: exactly one of inputs_embeds, query must be given, got 2", two},
       {"key: goes with query, which is not given", both},
       {"key: must be given with query", no_key},
       {"value: must be given with query", no_value},
       {"key: must be of shape [B, T, 3], got [2, 2]", apart({2, 2}, {2, 2, 3})},
       {"key: must have as many rows as query, got [1, 2, 3]", apart({1, 2, 3}, {1, 2, 3})},
       {"value: must have the shape of key, [2, 3, 3], got [2, 4, 3]", apart({2, 3, 3}, {2, 4, 3})},
       {"value: must not be empty", apart({2, 2, 3}, {2, 0, 3})},
       {"value: must have at most 64 tokens a row (the model's batch.max_tokens), got 66",
        Apart(1, 2, 64)},
       {"attention_mask: must have a number for each key, [2, 3], or for each pair of a query and "
        "a "
        "key, [2, 3, 2] or [2, 1, 2, 3], got [2, 2]",
        masked("BOOL", {2, 2}, "\1\1\1\1")},
       {"attention_mask: must have a number for each key",
        masked("BOOL", {3, 2, 2}, std::string(12, '\1'))},
       {"attention_mask: [2, 2, 2] may be of [T, T, B] or begin with B",
        Apart(2, 2, 2).Raw("attention_mask", "BOOL", {2, 2, 2}, std::string(8, '\1'))},
       {"attention_mask[1][2][0]: must be 0 or 1, got 2",
        masked("BOOL", {2, 3, 2}, std::string(10, '\1') + "\2\1")},
       {"attention_mask[1][0][1][2]: must be a finite number or -inf",
        masked("FP32", {2, 1, 2, 3}, RawOf(std::vector<float>(11)) + RawOf<float>({HUGE_VALF}))}});
  EncoderForms tied = kForms;
  tied.free_lengths = false;
  OipServer positions(TestConfigWithEncoder(), {}, Mixer(false, tied));
  ExpectRefused(positions, {{"key: must have the shape of query, [2, 2, 3], because the mixer "
                             "depends on positions, got [2, 3, 3]",
                             Apart(2, 2, 3)}});
  OipServer causal(TestConfigWithEncoder(), {}, Mixer(true, tied));
  ExpectRefused(causal,
                {{"key: must have the shape of query, [2, 2, 3], because the mixer is causal, got",
                  Apart(2, 2, 3)}});
  OipServer gpu(TestConfigWithEncoder(), {}, BareMixer(false));
  ExpectRefused(gpu,
                {{"query: is no input of model", Apart(1, 2, 2)},
                 {"attention_mask[0][0][0][1]: must be visible: on this device the model takes "
                  "no other mask of pairs",
                  Row(2).Raw("attention_mask", "BOOL", {1, 1, 2, 2}, std::string("\1\0\1\1", 4))}});
}

// The mask of an image with one column also has the shape of labml's masks, so it is refused.
TEST(OipPairsTest, AnAmbiguousMaskIsRefused) {
  FakeEncoderRunner::Options options = BareMixer(false, 5);
  options.forms = kForms;
  OipServer server(TestConfigWithEncoder(), {}, options);
  ExpectRefused(server, {{"attention_mask: [2, 2, 1] may be of [T, T, B] or begin with B",
                          server::Vectors({2, 2, 1, 3}, Count(12))
                              .Raw("attention_mask", "BOOL", {2, 2, 1}, std::string(4, '\1'))}});
}

TEST(OipPairsTest, AnEncodersMaskMayHaveHolesAndPaddingOnBothSides) {
  OipServer server(TestConfigWithEncoder());
  const auto infer = [&](bool ids, const char* pooling) {
    InferBuilder builder("encoder");
    if (ids) {
      builder.Raw("input_ids", "INT64", {1, 5}, RawOf<int64_t>({9, 8, 7, 6, 5}));
    } else {
      builder.Raw("inputs_embeds", "FP32", {1, 5, 3}, RawOf(Count(15)));
    }
    builder.Raw("attention_mask", "INT64", {1, 5}, RawOf<int64_t>({0, 1, 0, 1, 0}));
    builder.Parameter("pooling").set_string_param(pooling);
    return server.Infer(builder.request());
  };
  EncoderInput row = {.vectors = Count(12), .mask = {kHidden, 0, kHidden, 0}};
  std::vector<float> expected = Want({row});
  std::fill_n(expected.begin(), 3, 0.0F);
  std::fill_n(expected.begin() + 6, 3, 0.0F);
  expected.resize(15, 0.0F);
  const auto answer = infer(false, "mean");
  EXPECT_EQ(Hidden(answer), expected);
  const auto at = [&](size_t i) { return expected[i]; };
  EXPECT_EQ(Numbers<float>(answer.response, "embedding"),
            (std::vector<float>{(at(3) + at(9)) / 2, (at(4) + at(10)) / 2, (at(5) + at(11)) / 2}));
  EXPECT_EQ(Numbers<float>(infer(false, "first").response, "embedding"),
            (std::vector<float>{at(3), at(4), at(5)}));
  EXPECT_EQ(Numbers<float>(infer(false, "last").response, "embedding"),
            (std::vector<float>{at(9), at(10), at(11)}));
  const std::vector<float> hidden = Hidden(infer(true, "last"));
  EXPECT_EQ(std::vector<float>(hidden.begin(), hidden.begin() + 3), std::vector<float>(3, 0.0F));
  EXPECT_NE(hidden[3], 0);
  EXPECT_EQ(hidden[6], 0);
  EXPECT_EQ(hidden[12], 0);
  // If only the embedding is requested, the engine pools.
  InferBuilder pooled = server::Vectors({1, 5, 3}, Count(15));
  pooled.Raw("attention_mask", "BOOL", {1, 5}, std::string("\0\1\0\1\0", 5)).Output("embedding");
  EXPECT_EQ(Numbers<float>(server.Infer(pooled.request()).response, "embedding"),
            Numbers<float>(answer.response, "embedding"));
  server.WaitForMetric("aft_memory_used_bytes", 0);
}

TEST(OipPairsTest, AnEncoderTakesMasksOfPairs) {
  FakeEncoderRunner::Options options;
  options.causal = false;
  options.forms = {.pairs = true};
  OipServer server(TestConfigWithEncoder(), {}, options);
  const std::vector<float> mask = {0, kHidden, 0, 0};
  EXPECT_EQ(Hidden(server.Infer(
                Row(2).Raw("attention_mask", "FP32", {1, 1, 2, 2}, RawOf(mask)).request())),
            Want({{.vectors = Count(6), .pairs = Pairs(mask)}}));
}

TEST(OipPairsTest, TheNumberOfPairsOfARowIsLimited) {
  ServerConfig config = TestConfigWithEncoder();
  config.models[1].max_batch_tokens = 4'100;
  OipServer server(config, {}, Mixer());
  ExpectRefused(server,
                {{"value: must have at most 4194304 pairs with query, got 2048 times 2049",
                  Apart(1, 2048, 2049)},
                 {"attention_mask: must have at most 4194304 pairs a row, got 2049 times 2049",
                  Row(2049).Raw("attention_mask", "BOOL", {2049, 2049},
                                std::string(size_t{2049} * 2049, '\1'))}});
}

TEST(OipPairsTest, MetadataNamesAMixersInputs) {
  OipServer server(TestConfigWithEncoder(), {}, Mixer());
  inference::ModelMetadataRequest request;
  request.set_name("encoder");
  inference::ModelMetadataResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(server.oip().ModelMetadata(&context, request, &response).ok());
  std::vector<std::string> names;
  for (const auto& input : response.inputs()) names.push_back(input.name());
  EXPECT_THAT(names, ElementsAre("inputs_embeds", "query", "key", "value", "attention_mask"));
  inference::ModelConfigRequest config_request;
  config_request.set_name("encoder");
  inference::ModelConfigResponse config;
  grpc::ClientContext config_context;
  ASSERT_TRUE(server.oip().ModelConfig(&config_context, config_request, &config).ok());
  for (const auto& input : config.config().input()) EXPECT_TRUE(input.optional()) << input.name();
}

}  // namespace
}  // namespace aft::server
