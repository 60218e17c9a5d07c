// Serves an RWKV-7 with tuned states: in every protocol a request can begin its text from one of
// them.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/cat.h"
#include "ATen/ops/log_softmax.h"
#include "ATen/ops/zeros.h"
#include "ATen/ops/zeros_like.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/safetensors.h"
#include "model/convert/import.h"
#include "tests/integration/http/fixture.h"
#include "tests/integration/oip/fixture.h"
#include "tests/integration/server_fixture.h"
#include "tests/parity/goldens.h"
#include "tests/support/temp_files.h"
#include "tests/support/tolerances.h"

namespace aft::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// The golden RWKV-7 with two states: "tuned" is that of the goldens, "zero" has zeros.
class InitialStateTest : public testing::Test {
 protected:
  static constexpr int64_t kVocabulary = 256;  // bytes; the goldens have fewer tokens

  InitialStateTest() {
    config_.models[0].checkpoint_dir = dir_;
    config_.models[0].weight_format = "fp32";
    config_.states.max_bytes = 1 << 26;
    WriteModel();
    Start();
  }

  void Start() {
    server_ = std::make_unique<OipServer>(config_, LoadModel);
    EXPECT_EQ(server_->server().WaitReady(), absl::OkStatus());
  }

  // Appends rows of zeros to a golden tensor, up to kVocabulary along `axis`.
  static at::Tensor Padded(const at::Tensor& rows, int64_t axis) {
    std::vector<int64_t> shape = rows.sizes().vec();
    shape[static_cast<size_t>(axis)] = kVocabulary - rows.size(axis);
    return at::cat({rows, at::zeros(shape, rows.options())}, axis);
  }

  void WriteModel() {
    TensorMap weights = ReadGoldens("rwkv7").tensors;
    for (const char* name : {"emb.weight", "head.weight"}) {
      weights[name] = Padded(weights[name], 0).contiguous();
    }
    const std::string source = folder_.File("source.safetensors");
    ASSERT_EQ(WriteSafetensors(source, weights), absl::OkStatus());
    const auto import = ImportRwkv(source, {});
    ASSERT_TRUE(import.ok()) << import.status();
    ASSERT_EQ(WriteImport(dir_, *import), absl::OkStatus());
    TensorMap states;
    for (const auto& [name, tensor] : golden_) {
      if (name.ends_with("time_state")) states[name] = tensor;
    }
    for (const std::string name : {"tuned", "zero"}) {
      const std::string path = folder_.File(name + ".safetensors");
      ASSERT_EQ(WriteSafetensors(path, states), absl::OkStatus());
      ASSERT_TRUE(AddRwkvState(path, {}, dir_, name).ok());
      for (auto& [tensor, values] : states) values = at::zeros_like(values);
    }
  }

  v1::GenerateRequest Generation(const std::string& state, const std::string& prompt = "A state") {
    v1::GenerateRequest request = Request(prompt, 12);
    request.mutable_sampling()->set_temperature(1);
    request.set_initial_state(state);
    return request;
  }
  GenerateStream Run(const v1::GenerateRequest& request) { return RunToEnd(*server_, request); }
  std::string Refusal(const v1::GenerateRequest& request) {
    GenerateStream stream(server_->inference(), request);
    const grpc::Status status = stream.Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  }

  const TensorMap golden_ = ReadGoldens("rwkv7_tuned").tensors;
  const TempFolder folder_;
  const std::string dir_ = folder_.File("model");
  ServerConfig config_ = WithHttp();
  std::unique_ptr<OipServer> server_;
};

TEST_F(InitialStateTest, ScoresAreThoseOfTheReferenceThatBeginsFromTheState) {
  const at::Tensor& tokens = golden_.at("tokens");
  const at::Tensor expected = at::log_softmax(Padded(golden_.at("expected").to(at::kDouble), 1), 1);
  v1::ScoreRequest request;
  request.set_initial_state("tuned");
  for (int64_t i = 0; i < tokens.numel(); ++i) {
    request.mutable_tokens()->add_ids(static_cast<uint32_t>(tokens[i].item<int64_t>()));
  }
  for (const auto& [context, cached] : {std::pair(0U, 0U), {60U, 0U}, {60U, 59U}}) {
    request.set_context_tokens(context);
    ScoreStream stream(server_->inference(), request);
    const grpc::Status status = stream.Finish();
    ASSERT_TRUE(status.ok()) << status.error_message();
    int64_t next = std::max<int64_t>(context, 1);
    for (const v1::ScoreResponse& event : stream.events) {
      for (const v1::TokenLogprobs& token : event.chunk().logprobs()) {
        const double want = expected[next - 1][tokens[next].item<int64_t>()].item<double>();
        EXPECT_NEAR(token.logprob(), want, tolerance::kLogProbability) << next;
        ++next;
      }
    }
    EXPECT_EQ(next, tokens.numel());
    const v1::Usage& usage = stream.events.back().finished().usage();
    EXPECT_EQ(usage.prompt_tokens(), tokens.numel());
    EXPECT_EQ(usage.cached_tokens(), cached);
  }
}

TEST_F(InitialStateTest, AStateOfZerosIsNoState) {
  EXPECT_EQ(Run(Generation("zero")).tokens, Run(Generation("")).tokens);
  EXPECT_NE(Run(Generation("zero")).tokens, Run(Generation("tuned")).tokens);
}

TEST_F(InitialStateTest, AnswersShareThePromptAndTheNextTurnContinues) {
  const std::vector<TokenId> alone = Run(Generation("tuned")).tokens;
  v1::GenerateRequest request = Generation("tuned");
  request.set_n(3);
  const GenerateStream several = Run(request);
  std::vector<TokenId> first;
  for (const v1::GenerateResponse& event : several.events) {
    if (event.sequence() != 0) continue;
    first.insert(first.end(), event.delta().token_ids().begin(), event.delta().token_ids().end());
  }
  EXPECT_EQ(first, alone);

  // A text that is given in two turns has the same answer as in one.
  request = Generation("tuned", "A sta");
  request.mutable_store();
  request.mutable_stop()->set_max_tokens(0);
  request.set_prompt_logprobs(true);
  const v1::State state = Run(request).finished.state();
  EXPECT_EQ(state.tokens(), 6U);  // the initial state counts as one
  v1::GenerateRequest next = Generation("", "te");
  next.mutable_previous()->set_state_id(state.id());
  EXPECT_EQ(Run(next).tokens, alone);
  next.set_initial_state("tuned");
  EXPECT_THAT(Refusal(next), HasSubstr("initial_state: must not be set if the request continues"));
}

TEST_F(InitialStateTest, ABrokenStreamIsResumed) {
  v1::GenerateRequest request = Generation("tuned");
  const GenerateStream whole = Run(request);
  v1::Resume& resume = *request.mutable_resume();
  for (int i = 0; i < 5; ++i) resume.add_token_ids(static_cast<uint32_t>(whole.tokens[i]));
  resume.set_fingerprint(whole.started.fingerprint());
  resume.set_numerics(whole.started.numerics());
  const GenerateStream rest = Run(request);
  EXPECT_EQ(rest.tokens, std::vector<TokenId>(whole.tokens.begin() + 5, whole.tokens.end()));
  EXPECT_TRUE(rest.started.exact());
  v1::ScoreRequest score;
  score.set_text("A state");
  score.set_initial_state("tuned");
  score.mutable_resume()->set_scores(2);
  score.mutable_resume()->set_fingerprint(resume.fingerprint());
  score.mutable_resume()->set_numerics(resume.numerics());
  const auto scores_exactly = [&] {
    ScoreStream stream(server_->inference(), score);
    const grpc::Status status = stream.Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return status.ok() && stream.events.front().started().exact();
  };
  EXPECT_TRUE(scores_exactly());
  // Now "tuned" names other numbers, as on a server with another file of this name.
  const std::filesystem::path dir = dir_;
  std::filesystem::copy_file(dir / StateFileName("zero"), dir / StateFileName("tuned"),
                             std::filesystem::copy_options::overwrite_existing);
  Start();
  EXPECT_FALSE(Run(request).started.exact());
  EXPECT_FALSE(scores_exactly());
}

TEST_F(InitialStateTest, EveryProtocolNamesTheState) {
  const GenerateStream stream = Run(Generation("tuned"));
  const std::string address = server_->server().http_address();
  const auto post = [&](const char* path, Json body) {
    const TcpConnection connection(address);
    body.update({{"seed", 7}, {"ignore_eos", true}});
    connection.Send(HttpPost(path, body.dump()));
    return ParseReply(connection.ReadAll()).json();
  };
  Json body = {{"prompt", "A state"}, {"max_tokens", 12}, {"initial_state", "tuned"}};
  EXPECT_EQ(post("/v1/completions", body)["choices"][0]["text"], stream.text);
  body["initial_state"] = "x";
  EXPECT_EQ(post("/v1/completions", body)["error"]["param"], "initial_state");
  body = {{"input", "A"}, {"max_output_tokens", 4}, {"initial_state", "tuned"}, {"store", true}};
  const Json first = post("/v1/responses", body);
  ASSERT_TRUE(first.contains("id")) << first;
  body["previous_response_id"] = first["id"];
  EXPECT_EQ(post("/v1/responses", body)["error"]["param"], "initial_state");
  body.erase("initial_state");
  EXPECT_EQ(post("/v1/responses", body)["status"], "incomplete");  // at max_output_tokens

  ModelInferRequest request = InferBuilder().Text("text_input", "A state").Tokens(12).request();
  (*request.mutable_parameters())["initial_state"].set_string_param("tuned");
  const OipServer::Answer answer = server_->Infer(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(TextOutput(answer.response, "text_output"), "A state" + stream.text);
}

TEST_F(InitialStateTest, TheModelListsItsStatesAndRefusesOthers) {
  grpc::ClientContext context;
  v1::GetRequest request;
  v1::GetResponse response;
  request.set_name("fake");
  ASSERT_TRUE(server_->models().Get(&context, request, &response).ok());
  EXPECT_THAT(response.model().initial_states(), ElementsAre("tuned", "zero"));
  EXPECT_EQ(Refusal(Generation("Tuned")),
            "initial_state: the model \"fake\" has no state \"Tuned\"; it has: tuned, zero");
  EXPECT_EQ(Refusal(Generation("tuned", "")), "text: must not be empty");
}

TEST(NoInitialStateTest, AModelWithoutStatesSaysSo) {
  TestServer server;
  v1::GenerateRequest request = Request("a", 1);
  request.set_initial_state("x");
  GenerateStream stream(server.inference(), request);
  EXPECT_EQ(stream.Finish().error_message(),
            "initial_state: the model \"fake\" has no state \"x\"; it has none");
  request.set_initial_state(std::string(9000, 'x'));  // gRPC sends no message of that length
  GenerateStream longer(server.inference(), request);
  EXPECT_EQ(longer.Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace aft::server
