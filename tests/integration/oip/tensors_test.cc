// Tensors for encoders and bare mixers over real gRPC: what is accepted, charged and counted. The
// fakes of width 3 show which values arrived.
#include "tests/integration/oip/tensors.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/same_bits.h"
#include "tests/support/status_matchers.h"

namespace aft::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

inference::ModelStatistics StatisticsOf(OipServer& server) {
  inference::ModelStatisticsRequest request;
  request.set_name("encoder");
  inference::ModelStatisticsResponse response;
  grpc::ClientContext context;
  EXPECT_TRUE(server.oip().ModelStatistics(&context, request, &response).ok());
  return response.model_stats(0);
}

TEST(OipTensorsTest, ABareMixerAnswersEveryTokenWithAVector) {
  OipServer server(TestConfigWithEncoder(), {}, BareMixer());
  const auto answer = server.Infer(Vectors({2, 2, 3}, Count(12)).Id("7").request());
  EXPECT_EQ(Hidden(answer), Want({{.vectors = Count(6)}, {.vectors = Count(6, 7)}}));
  EXPECT_THAT(OutputNames(answer.response), ElementsAre("last_hidden_state"));
  EXPECT_THAT(ShapeOf(answer.response, "last_hidden_state"), ElementsAre(2, 2, 3));
  EXPECT_EQ(answer.response.id(), "7");
  EXPECT_EQ(server.Metric("aft_encoded_tokens_total{model=\"encoder\"}"), 4);
  server.WaitForMetric("aft_memory_used_bytes", 0);
}

TEST(OipTensorsTest, NumbersMayBeTypedOrBfloat16) {
  OipServer server(TestConfigWithEncoder(), {}, BareMixer());
  ModelInferRequest typed;
  typed.set_model_name("encoder");
  auto& input = *typed.add_inputs();
  input.set_name("inputs_embeds");
  input.set_datatype("FP32");
  for (const int64_t size : {2, 1, 3}) input.add_shape(size);
  for (const float value : Count(6)) input.mutable_contents()->add_fp32_contents(value);
  EXPECT_EQ(Hidden(server.Infer(typed)), Want({{.vectors = Count(3)}, {.vectors = Count(3, 4)}}));
  const std::vector<uint16_t> bf16 = {0x3F80, 0xC000, 0x4040, 0x7F80, 0x0001, 0x7FC0};
  const auto answer = server.Infer(
      InferBuilder("encoder").Raw("inputs_embeds", "BF16", {2, 1, 3}, RawOf(bf16)).request());
  const std::vector<float> got = Hidden(answer);
  EXPECT_EQ(std::vector<float>(got.begin(), got.begin() + 5),
            (std::vector<float>{1, -2, 3, HUGE_VALF, std::ldexp(1.0F, -133)}));
  EXPECT_TRUE(std::isnan(got[5]));
}

TEST(OipTensorsTest, AMaskOfABareMixerIsOfKeysAndMayHaveHoles) {
  OipServer server(TestConfigWithEncoder(), {}, BareMixer(/*causal=*/false));
  const std::vector<float> keys = {0, kHidden, 0, kHidden, kHidden, kHidden};
  const auto expected = Want({{.vectors = Count(9), .mask = {keys.begin(), keys.begin() + 3}},
                              {.vectors = Count(9, 10), .mask = {keys.begin() + 3, keys.end()}}});
  const auto with = [&](const char* datatype, const std::string& bytes) {
    return Hidden(server.Infer(
        Vectors({2, 3, 3}, Count(18)).Raw("attention_mask", datatype, {2, 3}, bytes).request()));
  };
  EXPECT_EQ(with("BOOL", std::string("\1\0\1\0\0\0", 6)), expected);
  EXPECT_EQ(with("INT64", RawOf<int64_t>({1, 0, 1, 0, 0, 0})), expected);
  EXPECT_EQ(with("INT32", RawOf<int32_t>({1, 0, 1, 0, 0, 0})), expected);
  EXPECT_EQ(with("FP32", RawOf(keys)), expected);
  const std::vector<float> soft = {-1.5F, 2, 0, -0.25F, 0, -1e4F};
  EXPECT_EQ(with("FP32", RawOf(soft)),
            Want({{.vectors = Count(9), .mask = {soft.begin(), soft.begin() + 3}},
                  {.vectors = Count(9, 10), .mask = {soft.begin() + 3, soft.end()}}}));
}

TEST(OipTensorsTest, OfMasksOfPairsOnlyTheCausalOneIsAccepted) {
  OipServer causal(TestConfigWithEncoder(), {}, BareMixer());
  const std::string triangle("\1\0\0\1\1\0\1\1\1", 9);
  const auto infer = [](OipServer& server, std::vector<int64_t> shape, const std::string& mask) {
    return server.Infer(Row(3).Raw("attention_mask", "BOOL", shape, mask).request());
  };
  EXPECT_EQ(Hidden(infer(causal, {3, 3}, triangle)), Want({{.vectors = Count(9)}}));
  EXPECT_EQ(Hidden(infer(causal, {3, 3, 1}, triangle)), Want({{.vectors = Count(9)}}));
  const auto refused = [&](OipServer& server, std::vector<int64_t> shape, const std::string& mask,
                           const char* why) {
    EXPECT_THAT(infer(server, std::move(shape), mask).status,
                StatusIs(absl::StatusCode::kInvalidArgument, StartsWith(why)));
  };
  const auto numbers = [&](float hidden, float visible) {
    std::vector<float> mask;
    for (int i = 0; i < 9; ++i) mask.push_back(i % 3 > i / 3 ? hidden : visible);
    return causal.Infer(Row(3).Raw("attention_mask", "FP32", {3, 3}, RawOf(mask)).request()).status;
  };
  EXPECT_TRUE(numbers(kHidden, 0).ok());
  EXPECT_TRUE(numbers(-1e30F, -0.0F).ok());
  EXPECT_THAT(numbers(-1e29F, 0), StatusIs(absl::StatusCode::kInvalidArgument,
                                           StartsWith("attention_mask[0][1]: must be hidden")));
  EXPECT_THAT(numbers(kHidden, -1), StatusIs(absl::StatusCode::kInvalidArgument,
                                             StartsWith("attention_mask[0][0]: must be visible")));
  refused(causal, {3, 3}, std::string("\1\0\0\1\1\0\1\0\1", 9),
          "attention_mask[2][1]: must be visible: on this device the model takes no other mask");
  refused(causal, {3, 3}, std::string(9, '\1'), "attention_mask[0][1]: must be hidden: the model");
  refused(causal, {3, 1, 3}, triangle, "attention_mask: must have a number for each key, [1, 3]");
  OipServer both_ways(TestConfigWithEncoder(), {}, BareMixer(/*causal=*/false));
  refused(both_ways, {3, 3}, triangle,
          "attention_mask[0][1]: must be visible: on this device the model takes no other mask");
  // If B equals T, a mask of shape [B, T] is a mask of keys.
  const auto square =
      causal.Infer(Vectors({2, 2, 3}, Count(12))
                       .Raw("attention_mask", "BOOL", {2, 2}, std::string("\1\0\1\1", 4))
                       .request());
  EXPECT_EQ(Hidden(square), Want({{.vectors = Count(6), .mask = {0, kHidden}},
                                  {.vectors = Count(6, 7), .mask = {0, 0}}}));
}

TEST(OipTensorsTest, ImagesHaveRowsAndColumns) {
  OipServer server(TestConfigWithEncoder(), {}, BareMixer(/*causal=*/false, 5));
  const auto answer =
      server.Infer(Vectors({1, 2, 3, 3}, Count(18))
                       .Raw("attention_mask", "BOOL", {1, 2, 3}, std::string("\1\1\0\1\1\1", 6))
                       .request());
  EXPECT_EQ(Hidden(answer),
            Want({{.vectors = Count(18), .mask = {0, 0, kHidden, 0, 0, 0}, .image_width = 3}}));
  EXPECT_THAT(ShapeOf(answer.response, "last_hidden_state"), ElementsAre(1, 2, 3, 3));
}

TEST(OipTensorsTest, AnEncoderTakesVectorsForIds) {
  OipServer server(TestConfigWithEncoder());
  InferBuilder builder = Vectors({2, 2, 3}, Count(12))
                             .Raw("attention_mask", "BOOL", {2, 2}, std::string("\1\0\1\1", 4));
  builder.Parameter("pooling").set_string_param("last");
  const auto answer = server.Infer(builder.request());
  std::vector<float> expected = Want({{.vectors = Count(3)}});
  expected.resize(6, 0);  // padding
  const std::vector<float> second = Want({{.vectors = Count(6, 7)}});
  expected.insert(expected.end(), second.begin(), second.end());
  EXPECT_EQ(Hidden(answer), expected);
  EXPECT_EQ(
      Numbers<float>(answer.response, "embedding"),
      (std::vector<float>{expected[0], expected[1], expected[2], second[3], second[4], second[5]}));
}

TEST(OipTensorsTest, NumbersThatAreNotFinitePassAndHarmNoOtherRow) {
  OipServer server(TestConfigWithEncoder(), {}, BareMixer());
  server.encoder_control().Hold();
  InferStream stream(server.oip());
  ASSERT_TRUE(stream.Send(Row(1).Id("holds").request()));
  server.encoder_control().WaitUntilBlocked();
  ASSERT_TRUE(stream.Send(Vectors({1, 1, 3}, {kNan, HUGE_VALF, -HUGE_VALF}).Id("bad").request()));
  ASSERT_TRUE(stream.Send(Row(2).Id("good").request()));
  server.encoder_control().Resume();
  for (const auto& response : stream.ReadAll()) {
    EXPECT_EQ(response.error_message(), "");
    const auto values = Numbers<float>(response.infer_response(), "last_hidden_state");
    if (response.infer_response().id() == "bad") {
      EXPECT_TRUE(std::isnan(values[0]));
      EXPECT_EQ(values[1], HUGE_VALF);
      EXPECT_EQ(values[2], -HUGE_VALF);
    } else if (response.infer_response().id() == "good") {
      EXPECT_EQ(values, Want({{.vectors = Count(6)}}));
    }
  }
  server.WaitForMetric("aft_memory_used_bytes", 0);
}

// A kernel's exponential of a NaN with other bits may be finite.
TEST(OipTensorsTest, EveryNanArrivesAsTheQuietOne) {
  OipServer server(TestConfigWithEncoder(), {}, BareMixer());
  const std::vector<float> nans = {std::bit_cast<float>(0x7FC00001U),
                                   std::bit_cast<float>(0xFFFFFFFFU), kNan};
  ModelInferRequest request = Vectors({1, 1, 3}, nans).request();
  const std::vector<float> quiet(3, kNan);
  EXPECT_TRUE(SameBits(Hidden(server.Infer(request)), quiet));
  request.clear_raw_input_contents();
  auto& typed = *request.mutable_inputs(0)->mutable_contents();
  for (const float nan : nans) typed.add_fp32_contents(nan);
  EXPECT_TRUE(SameBits(Hidden(server.Infer(request)), quiet));
}

TEST(OipTensorsTest, RowsOfManyRequestsRunTogetherAndAreCounted) {
  OipServer server(TestConfigWithEncoder(), {}, BareMixer());
  server.encoder_control().Hold();
  InferStream stream(server.oip());
  ASSERT_TRUE(stream.Send(Row(1).request()));
  server.encoder_control().WaitUntilBlocked();
  ASSERT_TRUE(stream.Send(Vectors({2, 2, 3}, Count(12)).request()));
  ASSERT_TRUE(stream.Send(Row(5).request()));
  ASSERT_TRUE(stream.Send(Row(7).request()));
  server.WaitForMetric(R"(aft_requests_waiting{model="encoder"})", 4);
  server.encoder_control().Resume();
  for (const auto& response : stream.ReadAll()) EXPECT_EQ(response.error_message(), "");
  server.encoder_control().FailNext(absl::InternalError("broken"));
  EXPECT_FALSE(server.Infer(Row(1).request()).status.ok());
  EXPECT_TRUE(server.Infer(Row(1).request()).status.ok());
  const inference::ModelStatistics statistics = StatisticsOf(server);
  EXPECT_EQ(statistics.inference_stats().success().count(), 5U);
  EXPECT_EQ(statistics.inference_stats().fail().count(), 1U);
  EXPECT_EQ(statistics.inference_count(), 6U);  // counts rows
  EXPECT_EQ(statistics.execution_count(), 3U);
  ASSERT_EQ(statistics.batch_stats_size(), 2);
  EXPECT_EQ(statistics.batch_stats(0).batch_size(), 1U);
  EXPECT_EQ(statistics.batch_stats(0).compute_infer().count(), 2U);
  EXPECT_GT(statistics.batch_stats(0).compute_infer().ns(), 0U);
  EXPECT_EQ(statistics.batch_stats(1).batch_size(), 4U);
  EXPECT_EQ(statistics.batch_stats(1).compute_infer().count(), 1U);
}

TEST(OipTensorsTest, VectorsAreChargedToTheirClient) {
  ServerConfig config = TestConfigWithEncoder();
  config.models[1].max_batch_tokens = 2000;
  FakeEncoderRunner::Options options = BareMixer();
  options.width = 300;
  const std::vector<float> values = Count(100 * 300);  // 120 kB
  // The server charges ten bytes for each byte of raw contents.
  config.limits.max_memory_bytes = config.limits.max_client_memory_bytes = 10 * 120'000;
  OipServer server(config, {}, options);
  EXPECT_THAT(server.Infer(Vectors({1, 100, 300}, values).request()).status,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("max_memory_bytes")));
  server.WaitForMetric("aft_memory_used_bytes", 0);
  EXPECT_TRUE(server.Infer(Vectors({1, 50, 300}, Count(50 * 300)).request()).status.ok());
  // It charges 22 bytes for each byte of typed contents.
  InferBuilder typed("encoder");
  auto& input = *typed.request().add_inputs();
  input.set_name("inputs_embeds");
  input.set_datatype("FP32");
  for (const int64_t size : {1, 50, 300}) input.add_shape(size);
  const std::vector<float> half = Count(50 * 300);
  input.mutable_contents()->mutable_fp32_contents()->Add(half.begin(), half.end());
  EXPECT_THAT(server.Infer(typed.request()).status,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("max_memory_bytes")));
  // A waiting request is charged for its vectors and three times the same amount for its answer.
  const auto used = [&](int64_t tokens) {
    server.WaitForMetric("aft_memory_used_bytes", 0);
    server.encoder_control().Hold();
    InferStream stream(server.oip());
    EXPECT_TRUE(stream.Send(Vectors({1, tokens, 300}, Count(tokens * 300)).request()));
    server.encoder_control().WaitUntilBlocked();
    const double bytes = server.Metric("aft_memory_used_bytes");
    server.encoder_control().Resume();
    EXPECT_EQ(stream.ReadAll().size(), 1U);
    return bytes;
  };
  EXPECT_EQ(used(50) - used(10), 40 * 300 * 4 * (1 + 3));
  server.WaitForMetric("aft_memory_used_bytes", 0);
}

TEST(OipTensorsTest, MetadataNamesInputsAndOutputs) {
  const auto metadata = [](OipServer& server) {
    inference::ModelMetadataRequest request;
    request.set_name("encoder");
    inference::ModelMetadataResponse response;
    grpc::ClientContext context;
    EXPECT_TRUE(server.oip().ModelMetadata(&context, request, &response).ok());
    std::string text;
    for (const auto* tensors : {&response.inputs(), &response.outputs()}) {
      for (const auto& tensor : *tensors) {
        absl::StrAppend(&text, tensor.name(), " ", tensor.datatype());
        for (const int64_t size : tensor.shape()) absl::StrAppend(&text, " ", size);
        absl::StrAppend(&text, "; ");
      }
    }
    return text;
  };
  OipServer sequences(TestConfigWithEncoder(), {}, BareMixer());
  EXPECT_EQ(metadata(sequences),
            "inputs_embeds FP32 -1 -1 3; attention_mask BOOL -1 -1; "
            "last_hidden_state FP32 -1 -1 3; ");
  OipServer images(TestConfigWithEncoder(), {}, BareMixer(false, 5));
  EXPECT_EQ(metadata(images),
            "inputs_embeds FP32 -1 -1 -1 3; attention_mask BOOL -1 -1 -1; "
            "last_hidden_state FP32 -1 -1 -1 3; ");
  OipServer encoder(TestConfigWithEncoder());
  EXPECT_THAT(metadata(encoder), HasSubstr("inputs_embeds FP32 -1 -1 3; attention_mask INT64"));
  inference::ModelConfigRequest request;  // its inputs say whether they are optional
  request.set_name("encoder");
  inference::ModelConfigResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(sequences.oip().ModelConfig(&context, request, &response).ok());
  EXPECT_FALSE(response.config().input(0).optional());
  EXPECT_TRUE(response.config().input(1).optional());
  EXPECT_EQ(response.config().max_batch_size(), 4);
}

TEST(OipTensorsTest, OtherMethodsRefuseABareMixer) {
  OipServer server(TestConfigWithEncoder(), {}, BareMixer());
  const auto text = [](auto request) {
    request.set_model("encoder");
    request.set_text("x");
    return request;
  };
  v1::GenerateRequest generate = text(v1::GenerateRequest());
  generate.mutable_stop()->set_max_tokens(1);
  const char* const why = "model \"encoder\" is a bare mixer: it serves ModelInfer, not ";
  EXPECT_THAT(EncodeStream(server.inference(), text(v1::EncodeRequest())).Finish(),
              StatusIs(absl::StatusCode::kFailedPrecondition, absl::StrCat(why, "Encode")));
  EXPECT_THAT(ScoreStream(server.inference(), text(v1::ScoreRequest())).Finish(),
              StatusIs(absl::StatusCode::kFailedPrecondition, absl::StrCat(why, "Score")));
  EXPECT_THAT(GenerateStream(server.inference(), generate).Finish(),
              StatusIs(absl::StatusCode::kFailedPrecondition, absl::StrCat(why, "Generate")));
}

TEST(OipTensorsTest, RequestsAtTheLimitsAreAccepted) {
  FakeEncoderRunner::Options options = BareMixer();
  options.max_seq_len = 40;
  OipServer server(TestConfigWithEncoder(), {}, options);
  EXPECT_EQ(Hidden(server.Infer(Row(40).request())), Want({{.vectors = Count(120)}}));
  EXPECT_EQ(Hidden(server.Infer(Vectors({4, 16, 3}, Count(192)).request())).size(), 192U);
  OipServer images(TestConfigWithEncoder(), {}, BareMixer(/*causal=*/false, 5));
  EXPECT_EQ(Hidden(images.Infer(Vectors({1, 12, 5, 3}, Count(180)).request())),
            Want({{.vectors = Count(180), .image_width = 5}}));
}

// Several rows may have more tokens together than a step can hold, if each row fits into one.
TEST(OipTensorsTest, RowsMayFillSeveralSteps) {
  OipServer server(TestConfigWithEncoder(), {}, BareMixer());
  const auto answer = server.Infer(Vectors({4, 40, 3}, Count(480)).request());
  std::vector<EncoderInput> rows;
  for (const float first : {1.0F, 121.0F, 241.0F, 361.0F}) {
    rows.push_back({.vectors = Count(120, first)});
  }
  EXPECT_EQ(Hidden(answer), Want(rows));
  EXPECT_EQ(StatisticsOf(server).execution_count(), 4U);
  EXPECT_EQ(StatisticsOf(server).inference_count(), 4U);
  OipServer texts(TestConfigWithEncoder());
  EXPECT_EQ(Hidden(texts.Infer(InferBuilder("encoder")
                                   .Raw("text_input", "BYTES", {2},
                                        RawText(std::string(40, 'x')) + RawText("y"))
                                   .request()))
                .size(),
            2U * 40 * 3);
}

// Images of different widths share a step, and run there one width after another.
TEST(OipTensorsTest, ImagesOfSeveralWidthsShareABatch) {
  OipServer server(TestConfigWithEncoder(), {}, BareMixer(/*causal=*/false, 5));
  server.encoder_control().Hold();
  InferStream stream(server.oip());
  for (int64_t columns = 1; columns <= 4; ++columns) {
    ASSERT_TRUE(stream.Send(
        Vectors({1, 2, columns, 3}, Count(6 * columns)).Id(absl::StrCat(columns)).request()));
    if (columns == 1) server.encoder_control().WaitUntilBlocked();
  }
  server.WaitForMetric(R"(aft_requests_waiting{model="encoder"})", 3);
  server.encoder_control().Resume();
  for (const auto& response : stream.ReadAll()) {
    const int64_t columns = std::stoll(response.infer_response().id());
    EXPECT_EQ(Numbers<float>(response.infer_response(), "last_hidden_state"),
              Want({{.vectors = Count(6 * columns), .image_width = columns}}));
    EXPECT_THAT(ShapeOf(response.infer_response(), "last_hidden_state"),
                ElementsAre(1, 2, columns, 3));
  }
  EXPECT_EQ(StatisticsOf(server).execution_count(), 2U);
}

}  // namespace
}  // namespace aft::server
