// Errors of inference.GRPCInferenceService for bad requests, over real gRPC, with a fake language
// model.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/oip/fixture.h"

namespace aft::server {
namespace {

InferBuilder Prompt() { return InferBuilder().Text("text_input", "x"); }
template <typename Spoil>
InferBuilder Spoiled(const Spoil& spoil) {
  InferBuilder builder = Prompt();
  spoil(builder);
  return builder;
}

TEST(OipErrorsTest, ErrorsNameTheTensorOrTheParameter) {
  OipServer server(TestConfigWithMetrics());
  const auto json = [](const char* text) { return Prompt().Text("sampling_parameters", text); };
  const std::vector<Fault> faults = {
      {"text_input: exactly one of", InferBuilder()},
      {"prompt: is no input of model", InferBuilder().Text("prompt", "x")},
      {"text_input: exactly one of", Prompt().Ids({1})},
      {"text_input: must be BYTES, got INT64",
       InferBuilder().Raw("text_input", "INT64", {1}, RawOf<int64_t>({1}))},
      {"text_input: must have one element, got shape [2]",
       InferBuilder().Raw("text_input", "BYTES", {2}, RawText("a") + RawText("b"))},
      {"text_input: must not be empty", InferBuilder().Text("text_input", "")},
      {"text_input: element 0 has 9 bytes, but only 1 are left",
       InferBuilder().Raw("text_input", "BYTES", {1}, RawOf<uint32_t>({9}) + "x")},
      {"text_input: shape [1] asks for 1 elements, got 1 and 2 more bytes",
       InferBuilder().Raw("text_input", "BYTES", {1}, RawText("x") + "yz")},
      {"text_input: shape [1] of BYTES asks for at least 4 bytes, got 3",
       InferBuilder().Raw("text_input", "BYTES", {1}, "xyz")},
      {"text_input: is given twice", Prompt().Text("text_input", "y")},
      {"text_input: contents must not be set together with raw_input_contents",
       Spoiled([](auto& b) { b.request().mutable_inputs(0)->mutable_contents(); })},
      {"text_input: has neither contents nor raw_input_contents",
       Spoiled([](auto& b) { b.request().clear_raw_input_contents(); })},
      {"text_input: contents.int_contents is not for BYTES", Spoiled([](auto& b) {
         b.request().clear_raw_input_contents();
         b.request().mutable_inputs(0)->mutable_contents()->add_int_contents(1);
       })},
      {"text_input: shape [1] asks for 1 elements, got 2", Spoiled([](auto& b) {
         b.request().clear_raw_input_contents();
         auto& contents = *b.request().mutable_inputs(0)->mutable_contents();
         contents.add_bytes_contents("x");
         contents.add_bytes_contents("y");
       })},
      {"text_input: shared_memory_region: there is no shared memory", Spoiled([](auto& b) {
         (*b.request().mutable_inputs(0)->mutable_parameters())["shared_memory_region"]
             .set_string_param("region");
       })},
      {"text_input: shared_memory_byte_size: there is no shared memory", Spoiled([](auto& b) {
         (*b.request().mutable_inputs(0)->mutable_parameters())["shared_memory_byte_size"]
             .set_int64_param(8);
       })},
      {"text_output: shared_memory_region: there is no shared memory", Spoiled([](auto& b) {
         b.Output("text_output");
         (*b.request().mutable_outputs(0)->mutable_parameters())["shared_memory_region"]
             .set_string_param("region");
       })},
      {"raw_input_contents: must have an entry for each of 1 inputs, got 2",
       Spoiled([](auto& b) { b.request().add_raw_input_contents("x"); })},
      {"input_ids[1]: must be in [0, 257), the vocabulary, got 257", InferBuilder().Ids({1, 257})},
      {"input_ids[0]: must be in [0, 257), the vocabulary, got -1", InferBuilder().Ids({-1})},
      {"input_ids[0]: must be in [0, 257), the vocabulary, got 4294967297",
       InferBuilder().Ids({4294967297})},
      {"input_ids: must not be empty", InferBuilder().Ids({})},
      {"input_ids: must be INT64 or INT32, got FP32",
       InferBuilder().Raw("input_ids", "FP32", {1}, RawOf<float>({1}))},
      {"input_ids: must be of shape [T] or [1, T], got [2, 1]",
       InferBuilder().Raw("input_ids", "INT64", {2, 1}, RawOf<int64_t>({1, 2}))},
      {"input_ids: shape [2] of INT64 asks for 16 bytes, got 8",
       InferBuilder().Raw("input_ids", "INT64", {2}, RawOf<int64_t>({1}))},
      {"input_ids: shape [1] of INT64 asks for 8 bytes, got 9",
       InferBuilder().Raw("input_ids", "INT64", {1}, std::string(9, 'x'))},
      {"input_ids: shape [4611686018427387904, 2] has too many elements",
       InferBuilder().Raw("input_ids", "INT64", {1LL << 62, 2}, "x")},
      {"input_ids: shape [2305843009213693952] of INT64 asks for more bytes than there are, got 1",
       InferBuilder().Raw("input_ids", "INT64", {1LL << 61}, "x")},
      {"input_ids: no dimension may be below 0, got [-1]",
       InferBuilder().Raw("input_ids", "INT64", {-1}, "")},
      {"input_ids: must have at most 8 dimensions, got 9",
       InferBuilder().Raw("input_ids", "INT64", std::vector<int64_t>(9, 1), RawOf<int64_t>({1}))},
      {"input_ids: \"INT65\" is no datatype",
       InferBuilder().Raw("input_ids", "INT65", {1}, RawOf<int64_t>({1}))},
      {"input_ids: datatype: must have at most 8 bytes, got 9",
       InferBuilder().Raw("input_ids", "INT64INT6", {1}, RawOf<int64_t>({1}))},
      {"attention_mask: is no input of model \"fake\"",
       Prompt().Raw("attention_mask", "INT64", {1}, RawOf<int64_t>({1}))},
      {"inputs[1].name: must have at most 128 bytes, got 129",
       Prompt().Text(std::string(129, 'n'), "x")},
      {"inputs[1].name: must not be empty", Prompt().Text("", "x")},
      {"embedding: is no output of model \"fake\"", Prompt().Output("embedding")},
      {"outputs[0].name: must have at most 64 bytes, got 65",
       Prompt().Output(std::string(65, 'o'))},
      {"text_output: classification: the model is not a classifier", Spoiled([](auto& b) {
         b.Output("text_output");
         (*b.request().mutable_outputs(0)->mutable_parameters())["classification"].set_int64_param(
             3);
       })},
      {"stream: ModelInfer has one response", Prompt().Flag("stream")},
      {"stream: must be BOOL, got INT32",
       Prompt().Raw("stream", "INT32", {1}, RawOf<int32_t>({1}))},
      {"exclude_input_in_output: must be true with",
       InferBuilder().Ids({1}).Flag("exclude_input_in_output", false)},
      {"max_tokens: must be in [1, 1048576], got 0",
       Prompt().Raw("max_tokens", "INT32", {1}, RawOf<int32_t>({0}))},
      {"max_tokens: must be an integer from 0 to 4294967295",
       Prompt().Raw("max_tokens", "INT32", {1}, RawOf<int32_t>({-1}))},
      {"max_tokens: must be INT64 or INT32, got FP32",
       Prompt().Raw("max_tokens", "FP32", {1}, RawOf<float>({1}))},
      {"temperature: must be FP32, got INT32",
       Prompt().Raw("temperature", "INT32", {1}, RawOf<int32_t>({1}))},
      {"temperature: must be in [0, 100], got -1",
       Prompt().Raw("temperature", "FP32", {1}, RawOf<float>({-1}))},
      {"seed: must not be below 0, got -1",
       Prompt().Raw("seed", "INT64", {1}, RawOf<int64_t>({-1}))},
      {"sampling_parameters.top_p: must be in (0, 1], got 2", json(R"({"top_p": 2})")},
      {"sampling_parameters.top_p: must be a number", json(R"({"top_p": "much"})")},
      {"sampling_parameters.stop[1]: must have 1 to 256 bytes", json(R"({"stop": ["a", ""]})")},
      {"sampling_parameters.stop_token_ids[0]: must be below 257",
       json(R"({"stop_token_ids": [257]})")},
      {"sampling_parameters.logprobs: must be in [0, 20], got 21", json(R"({"logprobs": 21})")},
      {"sampling_parameters.beams: there is no such option", json(R"({"beams": 2})")},
      {"sampling_parameters.n: must be 1", json(R"({"n": 2})")},
      {"sampling_parameters.min_tokens: must be at most max_tokens = 3, got 4",
       json(R"({"min_tokens": 4, "max_tokens": 3})")},
      {"sampling_parameters.logit_bias[257]: must be below 257",
       json(R"({"logit_bias": {"257": 1}})")},
      {"sampling_parameters.logit_bias[5]: must be in [-100, 100], got 101",
       json(R"({"logit_bias": {"5": "101"}})")},
      {"sampling_parameters.logit_bias: must be an object with different token ids",
       json(R"({"logit_bias": [5]})")},
      {"sampling_parameters.logit_bias: must be an object with different token ids",
       json(R"({"logit_bias": {"x": 1}})")},
      {"sampling_parameters.logit_bias: must be an object with different token ids",
       json(R"({"logit_bias": {"5": 1, "05": 2}})")},
      {"sampling_parameters.allowed_token_ids[1]: must be below 257",
       json(R"({"allowed_token_ids": [1, 257]})")},
      {"sampling_parameters.bad_words[1]: must have 1 to 256 bytes, got 0",
       json(R"({"bad_words": ["x", ""]})")},
      {"sampling_parameters.bad_words: must be a string, or a list of these",
       json(R"({"bad_words": ["x", 1]})")},
      {"sampling_parameters.best_of: there is no such option", json(R"({"best_of": 1})")},
      {"sampling_parameters.seed: the key occurs twice", json(R"({"seed": 1, "seed": 2})")},
      {"sampling_parameters.logit_bias.5: the key occurs twice",
       json(R"({"logit_bias": {"5": 1, "5": 2}})")},
      {"sampling_parameters: must be the text of a JSON object", json("[1]")},
      {"sampling_parameters: must be the text of a JSON object", json("{\"seed\": 1")},
      {"sampling_parameters: must have at most 16384 bytes",
       Prompt().Text("sampling_parameters", std::string(16'385, ' '))},
      {"parameters.max_tokens: is given as sampling_parameters.max_tokens too",
       Spoiled([](auto& b) {
         b.Text("sampling_parameters", R"({"max_tokens": 1})");
         b.Parameter("max_tokens").set_int64_param(1);
       })},
      {"parameters.unheard_of: there is no such option",
       Spoiled([](auto& b) { b.Parameter("unheard_of").set_bool_param(true); })},
      {"parameters.temperature: must have a value",
       Spoiled([](auto& b) { b.Parameter("temperature"); })},
      {"parameters.unheard_of: must have a value",
       Spoiled([](auto& b) { b.Parameter("unheard_of"); })},
      {"parameters: a name: must have at most 64 bytes, got 65",
       Spoiled([](auto& b) { b.Parameter(std::string(65, 'p')).set_bool_param(true); })},
      {"parameters.priority: must be an integer of at least 0",
       Spoiled([](auto& b) { b.Parameter("priority").set_int64_param(-1); })},
      {"parameters.timeout: must be an integer",
       Spoiled([](auto& b) { b.Parameter("timeout").set_string_param("1"); })},
      {"parameters.sequence_id: sequences of requests are not supported",
       Spoiled([](auto& b) { b.Parameter("sequence_id").set_int64_param(3); })},
      {"parameters.sequence_id: sequences of requests are not supported",
       Spoiled([](auto& b) { b.Parameter("sequence_id").set_uint64_param(3); })},
      {"parameters.sequence_id: sequences of requests are not supported",
       Spoiled([](auto& b) { b.Parameter("sequence_id").set_string_param("abc"); })},
      {"parameters.sequence_start: sequences of requests are not supported",
       Spoiled([](auto& b) { b.Parameter("sequence_start").set_bool_param(true); })},
      {"parameters.sequence_length: there is no such option",
       Spoiled([](auto& b) { b.Parameter("sequence_length").set_bool_param(false); })},
      {"parameters.binary_data_output: must be a boolean",
       Spoiled([](auto& b) { b.Parameter("binary_data_output").set_int64_param(0); })},
      {"max_tokens: is only for generations, but score is true",
       Prompt().Flag("score").Raw("max_tokens", "INT32", {1}, RawOf<int32_t>({1}))},
      {"parameters: options are only for generations",
       Spoiled([](auto& b) { b.Flag("score").Parameter("max_tokens").set_int64_param(1); })},
      {"model_name: must have at most 128 bytes, got 129",
       Spoiled([](auto& b) { b.request().set_model_name(std::string(129, 'm')); })},
      {"id: must have at most 256 bytes, got 257", Prompt().Id(std::string(257, 'i'))},
  };
  ExpectRefused(server, faults);
  const auto count = static_cast<double>(faults.size());
  EXPECT_EQ(server.Metric(RequestsTotal("INVALID_ARGUMENT", "ModelInfer")), count - 2);
  // The two long names, of the model and of the id, are refused before a model is found.
  EXPECT_EQ(server.Metric(RequestsTotal("INVALID_ARGUMENT", "ModelInfer", "")), 2);
  ExpectServes(server);
}

TEST(OipErrorsTest, APromptThatIsTooLongForTheModelNamesItsTensor) {
  FakeModelRunner::Options options;
  options.max_seq_len = 20;
  OipServer server(TestConfigWithMetrics(), options);
  ExpectRefused(server, {{"text_input: 30 tokens and at least one more exceed",
                          InferBuilder().Text("text_input", std::string(30, 'x'))},
                         {"input_ids: 30 tokens and at least one more exceed",
                          InferBuilder().Ids(std::vector<int64_t>(30, 1))}});
}

TEST(OipErrorsTest, AStreamThatAsksForNoGrpcErrorContinuesAfterAnError) {
  OipServer server;
  InferStream stream(server.oip(), [](grpc::ClientContext& context) {
    context.AddMetadata("triton_grpc_error", "false");
  });
  ModelStreamInferResponse response;
  ASSERT_TRUE(stream.Send(InferBuilder().Text("text_input", "").request()));
  ASSERT_TRUE(stream.Next(response));
  EXPECT_THAT(response.error_message(), testing::StartsWith("text_input: must not be empty"));
  ASSERT_TRUE(stream.Send(Prompt().Tokens(1).request()));
  ASSERT_TRUE(stream.Next(response));
  EXPECT_EQ(response.error_message(), "");
  stream.ReadAll();
  EXPECT_TRUE(stream.Finish().ok());
}

TEST(OipErrorsTest, AStreamIsChargedForItsMemory) {
  ServerConfig config = TestConfigWithMetrics();
  config.limits.max_memory_bytes = config.limits.max_client_memory_bytes = 40 << 10;
  OipServer server(config);
  InferStream first(server.oip());
  InferStream second(server.oip());
  server.WaitForMetric("aft_memory_used_bytes", 2 * (16 << 10));
  InferStream third(server.oip());
  ModelStreamInferResponse response;
  EXPECT_FALSE(third.Next(response));
  EXPECT_THAT(third.Finish(), StatusIs(absl::StatusCode::kResourceExhausted,
                                       testing::HasSubstr("max_memory_bytes")));
  for (InferStream* const stream : {&first, &second}) {
    EXPECT_TRUE(stream->ReadAll().empty());
    EXPECT_TRUE(stream->Finish().ok());
  }
}

TEST(OipErrorsTest, AnErrorOfARunningRequestNamesTheParameter) {
  OipServer server(TestConfigWithMetrics());
  const char* const options = R"({"allowed_token_ids": [97], "bad_words": ["aa"]})";
  EXPECT_THAT(server.Infer(Prompt().Text("sampling_parameters", options).request()).status,
              StatusIs(absl::StatusCode::kInvalidArgument,
                       testing::HasSubstr("sampling_parameters.bad_words: leave no token")));
}

}  // namespace
}  // namespace aft::server
