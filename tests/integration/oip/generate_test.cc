// ModelInfer with a fake language model, over real gRPC.
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/integration/oip/fixture.h"
#include "tests/support/captured_log.h"
#include "tests/support/fake_tokenizer.h"
#include "tests/support/status_matchers.h"

namespace aft::server {
namespace {

using ::testing::ElementsAre;

std::vector<int64_t> IdsOf(const std::string& text) {
  const std::vector<TokenId> ids = *FakeTokenizer().Encode(text);
  return {ids.begin(), ids.end()};
}

std::vector<int64_t> IdsOf(const std::string& prompt, uint32_t count) {
  const std::vector<TokenId> ids = Expected(Request(prompt, count));
  return {ids.begin(), ids.end()};
}

std::string NativeText(OipServer& server, const v1::GenerateRequest& request) {
  GenerateStream stream(server.inference(), request);
  EXPECT_TRUE(stream.Finish().ok());
  return stream.text;
}

TEST(OipGenerateTest, TheTextOutputBeginsWithThePrompt) {
  OipServer server(TestConfigWithMetrics());
  const std::string text = NativeText(server, Request("a prompt", 20));
  const auto answer =
      server.Infer(InferBuilder().Text("text_input", "a prompt").Tokens(20).Id("mine").request());
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(TextOutput(answer.response, "text_output"), "a prompt" + text);
  EXPECT_THAT(OutputNames(answer.response), ElementsAre("text_output"));
  EXPECT_THAT(ShapeOf(answer.response, "text_output"), ElementsAre(1));
  EXPECT_EQ(answer.response.model_name(), "fake");
  EXPECT_EQ(answer.response.model_version(), "1");
  EXPECT_EQ(answer.response.id(), "mine");
  EXPECT_EQ(answer.response.parameters_size(), 0);
  EXPECT_EQ(answer.context->GetServerInitialMetadata().count("x-request-id"), 1U);
  EXPECT_EQ(server.Metric(RequestsTotal("OK", "ModelInfer")), 1);
  server.WaitForMetric("aft_memory_used_bytes", 0);
}

// The prompt is in the answer, in its response and in the serialised message.
TEST(OipGenerateTest, TheRepeatedPromptIsCharged) {
  OipServer server(TestConfigWithMetrics());
  server.control().Hold();
  InferStream stream(server.oip());
  ASSERT_TRUE(stream.Send(InferBuilder()
                              .Text("text_input", std::string(10'000, 'p'))
                              .Tokens(1)
                              .Flag("stream", false)
                              .request()));
  server.control().WaitUntilBlocked();
  EXPECT_GE(server.Metric(kMemoryUsed), 2 * kCall + 10'000 * (sizeof(TokenId) + 3));
  server.control().Resume();
  EXPECT_EQ(stream.ReadAll().size(), 1U);
  EXPECT_TRUE(stream.Finish().ok());
  server.WaitForMetric(kMemoryUsed, 0);
}

TEST(OipGenerateTest, GivesTheRequestedOutputs) {
  OipServer server;
  v1::GenerateRequest native = Request("a prompt", 5);
  native.mutable_output()->set_top_logprobs(2);
  GenerateStream stream(server.inference(), native);
  ASSERT_TRUE(stream.Finish().ok());
  std::vector<v1::TokenLogprobs> logprobs;
  float sum = 0;
  for (const auto& event : stream.events) {
    for (const auto& token : event.delta().logprobs()) {
      logprobs.push_back(token);
      sum += token.logprob();
    }
  }
  const auto answer = server.Infer(
      InferBuilder()
          .Text("text_input", "a prompt")
          .Text("sampling_parameters",
                R"({"max_tokens": 5, "seed": "7", "ignore_eos": "true", "logprobs": 2})")
          .Flag("exclude_input_in_output")
          .Flag("return_finish_reason")
          .Flag("return_cumulative_logprob")
          .Flag("return_logprobs")
          .Flag("return_num_input_tokens")
          .Flag("return_num_output_tokens")
          .request());
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  const ModelInferResponse& response = answer.response;
  EXPECT_THAT(OutputNames(response),
              ElementsAre("text_output", "finish_reason", "cumulative_logprob", "logprobs",
                          "num_input_tokens", "num_output_tokens"));
  EXPECT_EQ(TextOutput(response, "text_output"), stream.text);
  EXPECT_EQ(TextOutput(response, "finish_reason"), "length");
  EXPECT_NEAR(Numbers<float>(response, "cumulative_logprob")[0], sum, 1e-4);
  EXPECT_THAT(Numbers<uint32_t>(response, "num_input_tokens"), ElementsAre(8));
  EXPECT_THAT(Numbers<uint32_t>(response, "num_output_tokens"), ElementsAre(5));
  const auto json = nlohmann::json::parse(TextOutput(response, "logprobs"));
  ASSERT_EQ(json.size(), 5U);
  ASSERT_EQ(logprobs.size(), 5U);
  for (size_t i = 0; i < 5; ++i) {
    const auto& own = json[i][std::to_string(stream.tokens[i])];
    EXPECT_FLOAT_EQ(own["logprob"].get<float>(), logprobs[i].logprob());
    EXPECT_TRUE(own.contains("decoded_token"));
    for (int rank = 0; rank < logprobs[i].top_size(); ++rank) {
      const auto& top = json[i][std::to_string(logprobs[i].top(rank).token_id())];
      EXPECT_FLOAT_EQ(top["logprob"].get<float>(), logprobs[i].top(rank).logprob());
      EXPECT_EQ(top["rank"].get<int>(), rank + 1);
    }
  }
}

TEST(OipGenerateTest, TakesAndGivesTokenIds) {
  OipServer server;
  for (const bool narrow : {false, true}) {
    InferBuilder builder;
    if (narrow) {
      builder.Raw("input_ids", "INT32", {1, 3}, RawOf<int32_t>({'a', 'b', 'c'}));
    } else {
      builder.Ids(IdsOf("abc"));
    }
    builder.Raw("max_tokens", "INT32", {1}, RawOf<int32_t>({12}))
        .Raw("seed", "UINT64", {1, 1}, RawOf<uint64_t>({7}))
        .Flag("ignore_eos");
    const auto answer = server.Infer(builder.request());
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_THAT(OutputNames(answer.response), ElementsAre("output_ids"));
    EXPECT_EQ(Numbers<int64_t>(answer.response, "output_ids"), IdsOf("abc", 12));
    EXPECT_THAT(ShapeOf(answer.response, "output_ids"), ElementsAre(12));
    EXPECT_EQ(answer.response.outputs(0).datatype(), "INT64");
  }
}

TEST(OipGenerateTest, SamplingOptionsMayBeParametersTensorsOrJson) {
  OipServer server;
  const auto ids = [&](InferBuilder& builder) {
    const auto answer = server.Infer(builder.Ids(IdsOf("abc")).request());
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
    return Numbers<int64_t>(answer.response, "output_ids");
  };
  InferBuilder parameters;
  parameters.Parameter("max_tokens").set_int64_param(4);
  parameters.Parameter("seed").set_uint64_param(7);
  parameters.Parameter("ignore_eos").set_bool_param(true);
  parameters.Parameter("temperature").set_double_param(1.0);
  EXPECT_EQ(ids(parameters), IdsOf("abc", 4));
  InferBuilder tensors;
  tensors.Raw("max_tokens", "INT64", {1}, RawOf<int64_t>({4}))
      .Raw("seed", "INT64", {1}, RawOf<int64_t>({7}))
      .Raw("temperature", "FP32", {1}, RawOf<float>({1.0F}))
      .Raw("top_p", "FP32", {1}, RawOf<float>({1.0F}))
      .Raw("top_k", "INT32", {1}, RawOf<int32_t>({0}))
      .Flag("ignore_eos");
  EXPECT_EQ(ids(tensors), IdsOf("abc", 4));
  InferBuilder json;
  json.Text("sampling_parameters",
            R"({"max_tokens": 4, "min_tokens": 4, "seed": 7, "top_k": -1, "n": 1, "stop": []})");
  EXPECT_EQ(ids(json), IdsOf("abc", 4));
}

TEST(OipGenerateTest, StopsAtAString) {
  FakeModelRunner::Options options;
  options.next_token = [](uint64_t, int64_t count) { return static_cast<TokenId>('a' + count); };
  OipServer server(TestConfig(), options);
  for (const char* stop : {R"("ef")", R"(["x", "ef"])"}) {
    const auto answer =
        server.Infer(InferBuilder()
                         .Text("text_input", "ab")
                         .Text("sampling_parameters", std::string("{\"stop\": ") + stop + "}")
                         .Flag("exclude_input_in_output")
                         .Flag("return_finish_reason")
                         .request());
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_EQ(TextOutput(answer.response, "text_output"), "cd");
    EXPECT_EQ(TextOutput(answer.response, "finish_reason"), "stop");
  }
}

TEST(OipGenerateTest, TypedContentsEqualRawOnes) {
  OipServer server;
  ModelInferRequest request;
  request.set_model_name("fake");
  const auto add = [&](const char* name, const char* datatype, int64_t size) {
    auto& input = *request.add_inputs();
    input.set_name(name);
    input.set_datatype(datatype);
    input.add_shape(size);
    return input.mutable_contents();
  };
  for (const int64_t id : IdsOf("abc")) {
    if (request.inputs_size() == 0) add("input_ids", "INT64", 3);
    request.mutable_inputs(0)->mutable_contents()->add_int64_contents(id);
  }
  add("max_tokens", "INT32", 1)->add_int_contents(6);
  add("seed", "UINT64", 1)->add_uint64_contents(7);
  add("ignore_eos", "BOOL", 1)->add_bool_contents(true);
  add("temperature", "FP32", 1)->add_fp32_contents(1.0F);
  add("sampling_parameters", "BYTES", 1)->add_bytes_contents(R"({"top_k": 0})");
  const auto raw = server.Infer(request);
  ASSERT_TRUE(raw.status.ok()) << raw.status.error_message();
  EXPECT_EQ(Numbers<int64_t>(raw.response, "output_ids"), IdsOf("abc", 6));

  add("return_finish_reason", "BOOL", 1)->add_bool_contents(true);
  add("return_num_output_tokens", "BOOL", 1)->add_bool_contents(true);
  add("return_cumulative_logprob", "BOOL", 1)->add_bool_contents(true);
  (*request.mutable_parameters())["binary_data_output"].set_bool_param(false);
  const auto typed = server.Infer(request);
  ASSERT_TRUE(typed.status.ok()) << typed.status.error_message();
  EXPECT_EQ(typed.response.raw_output_contents_size(), 0);
  ASSERT_THAT(OutputNames(typed.response), ElementsAre("output_ids", "finish_reason",
                                                       "cumulative_logprob", "num_output_tokens"));
  const auto& ids = typed.response.outputs(0).contents().int64_contents();
  EXPECT_EQ(std::vector<int64_t>(ids.begin(), ids.end()), IdsOf("abc", 6));
  EXPECT_THAT(typed.response.outputs(1).contents().bytes_contents(), ElementsAre("length"));
  EXPECT_THAT(typed.response.outputs(2).contents().fp32_contents(), ElementsAre(-6));  // 6 tokens
  EXPECT_THAT(typed.response.outputs(3).contents().uint_contents(), ElementsAre(6));
}

TEST(OipGenerateTest, ScoresEqualTheModels) {
  OipServer server;
  const std::string text(100, 'q');
  const auto expected = FakeModelRunner::Score(*FakeTokenizer().Encode(text), 0);
  const auto answer = server.Infer(InferBuilder().Text("text_input", text).Flag("score").request());
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_THAT(OutputNames(answer.response),
              ElementsAre("token_ids", "token_logprobs", "cumulative_logprob", "num_input_tokens"));
  const auto ids = Numbers<int64_t>(answer.response, "token_ids");
  const auto logprobs = Numbers<float>(answer.response, "token_logprobs");
  ASSERT_EQ(ids.size(), expected.size());
  ASSERT_EQ(logprobs.size(), expected.size());
  double sum = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(ids[i], expected[i].id);
    EXPECT_EQ(logprobs[i], expected[i].logprob);
    sum += double{expected[i].logprob};
  }
  EXPECT_FLOAT_EQ(Numbers<float>(answer.response, "cumulative_logprob")[0],
                  static_cast<float>(sum));
  EXPECT_THAT(Numbers<uint32_t>(answer.response, "num_input_tokens"), ElementsAre(100));
  const auto some = server.Infer(
      InferBuilder().Ids(IdsOf(text)).Flag("score").Output("cumulative_logprob").request());
  EXPECT_THAT(OutputNames(some.response), ElementsAre("cumulative_logprob"));
}

TEST(OipGenerateTest, OnlyNamedOutputsAreReturned) {
  OipServer server;
  const auto answer = server.Infer(InferBuilder()
                                       .Text("text_input", "a")
                                       .Tokens(2)
                                       .Flag("return_finish_reason")
                                       .Flag("return_num_input_tokens")
                                       .Output("finish_reason")
                                       .Output("output_ids")  // an output of other requests
                                       .request());
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_THAT(OutputNames(answer.response), ElementsAre("finish_reason"));
}

TEST(OipGenerateTest, ATimeoutEndsARequest) {
  OipServer server;
  InferBuilder builder;
  builder.Text("text_input", "late").Tokens(1000).Parameter("timeout").set_uint64_param(1);
  EXPECT_EQ(server.Infer(builder.request()).status.error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  ExpectServes(server);
}

TEST(OipGenerateTest, ATimeoutDoesNotExtendTheServersLimit) {
  ServerConfig config = TestConfig();
  config.limits.max_request = std::chrono::milliseconds(30);
  config.limits.max_stream_buffer_bytes = 1 << 30;  // the size must not be the reason
  OipServer server(config);
  InferBuilder builder;
  builder.Text("text_input", "late").Tokens(kEndless);
  builder.Parameter("timeout").set_uint64_param(3'600'000'000);  // an hour
  EXPECT_THAT(server.Infer(builder.request()).status,
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       "it took longer than limits.max_request_ms=30"));
}

InferBuilder OnePrompt() { return InferBuilder().Text("text_input", "x"); }

TEST(OipGenerateTest, HarmlessParametersAreAccepted) {
  OipServer server;
  InferBuilder builder = OnePrompt();
  builder.Tokens(1);
  builder.Parameter("sequence_id").set_int64_param(0);
  builder.Parameter("sequence_start").set_bool_param(false);
  builder.Parameter("sequence_end").set_bool_param(false);
  builder.Parameter("priority").set_uint64_param(1);
  builder.Parameter("timeout").set_int64_param(0);
  builder.request().set_model_version("1");
  EXPECT_TRUE(server.Infer(builder.request()).status.ok());
  builder.Parameter("timeout").set_int64_param(INT64_MAX);  // microseconds
  builder.Parameter("sequence_id").set_uint64_param(0);
  EXPECT_TRUE(server.Infer(builder.request()).status.ok());
  builder.Parameter("sequence_id").set_string_param("");
  EXPECT_TRUE(server.Infer(builder.request()).status.ok());
}

// Triton's numbers: lower ones are served sooner, and 0 means the default.
TEST(OipGenerateTest, EachRequestOfAStreamHasASpanOfItsOwn) {
  const CapturedLog log;
  {
    OipServer server;
    InferStream stream(server.oip());
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(stream.Send(InferBuilder().Text("text_input", "abc").Tokens(2).request()));
    }
    stream.ReadAll();
    EXPECT_TRUE(stream.Finish().ok());
  }
  auto lines = log.Lines("request.done");
  ASSERT_EQ(lines.size(), 2U);
  if (lines[1]["parent_id"].empty()) std::swap(lines[0], lines[1]);  // they may end in any order
  EXPECT_EQ(lines[1]["parent_id"], lines[0]["span_id"]);
  EXPECT_NE(lines[1]["span_id"], lines[0]["span_id"]);
}

TEST(OipGenerateTest, ThePriorityIsANumber) {
  OipServer server(TestConfigWithMetrics());
  for (const uint64_t priority : {0, 1, 1, 2, 3, 1000}) {
    InferBuilder builder = OnePrompt();
    builder.Tokens(1).Parameter("priority").set_uint64_param(priority);
    EXPECT_TRUE(server.Infer(builder.request()).status.ok());
  }
  InferBuilder scored = OnePrompt().Flag("score");
  scored.Parameter("priority").set_uint64_param(1);
  EXPECT_TRUE(server.Infer(scored.request()).status.ok());
  const auto served = [&server](const char* priority) {
    return server.Metric(absl::StrCat(
        R"(aft_queue_seconds_count{method="ModelInfer",model="fake",priority=")", priority, "\"}"));
  };
  EXPECT_EQ(served("interactive"), 3);
  EXPECT_EQ(served("normal"), 2);
  EXPECT_EQ(served("batch"), 2);
}

}  // namespace
}  // namespace aft::server
