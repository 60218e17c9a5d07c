// The prefix cache over real gRPC, with a fake model, and what answers say about it.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/oip/fixture.h"
#include "tests/integration/server_fixture.h"
#include "tests/support/status_matchers.h"

namespace aft::server {
namespace {

class PrefixTest : public testing::Test {
 protected:
  v1::Usage Run(const v1::GenerateRequest& request) {
    const GenerateStream stream = RunToEnd(server_, request);
    EXPECT_EQ(stream.tokens, Expected(request));
    return stream.finished.usage();
  }
  v1::Usage Run(const std::string& prompt) { return Run(Request(prompt, 4)); }
  double Metric(const std::string& name) {
    return server_.Metric(absl::StrCat("aft_prefix_cache_", name, "{model=\"fake\"}"));
  }
  double Misses(const std::string& reason) {
    return server_.Metric(
        absl::StrCat("aft_prefix_cache_misses_total{model=\"fake\",reason=\"", reason, "\"}"));
  }

  TestServer server_{TestConfigWithMetrics()};
  const std::string system_ = std::string(300, 's') + "The answers are short.";
};

TEST_F(PrefixTest, UsageNamesCachedTokensOrTheReasonOfAMiss) {
  EXPECT_EQ(Run("short").cache_miss(), v1::CACHE_MISS_TOO_SHORT);
  EXPECT_EQ(Run(system_ + "First?").cache_miss(), v1::CACHE_MISS_COLD);
  const v1::Usage second = Run(system_ + "Second?");
  EXPECT_EQ(second.cache_miss(), v1::CACHE_MISS_DIVERGED);
  EXPECT_EQ(second.diverged_at(), system_.size());
  EXPECT_EQ(second.cached_tokens(), 0U);
  const v1::Usage third = Run(system_ + "The third?");
  EXPECT_EQ(third.cache_miss(), v1::CACHE_MISS_UNSPECIFIED);
  EXPECT_EQ(third.cached_tokens(), system_.size());
  EXPECT_EQ(third.prompt_tokens(), system_.size() + 10);
  EXPECT_EQ(Misses("too_short"), 1);
  EXPECT_EQ(Misses("cold"), 1);
  EXPECT_EQ(Misses("diverged"), 1);
  EXPECT_EQ(Metric("hits_total"), 1);
  EXPECT_EQ(Metric("hit_tokens_total"), static_cast<double>(system_.size()));
  EXPECT_GT(Metric("states"), 0);
  EXPECT_GT(Metric("bytes"), 0);
  EXPECT_EQ(Metric("limit_bytes"), static_cast<double>(ModelConfig().prefix_cache_bytes));
  // This metric counts only tokens that were computed, not those from the cache.
  EXPECT_EQ(server_.Metric("aft_prompt_tokens_total{model=\"fake\"}"),
            static_cast<double>(5 + 2 * system_.size() + 6 + 7 + 10));
}

TEST_F(PrefixTest, AClientIsChargedForComputedTokensOnly) {
  const auto tokens = [&] { return server_.Metric("aft_client_tokens_total{client=\"other\"}"); };
  for (const char* const question : {"First?", "Second?"}) Run(system_ + question);
  const double before = tokens();
  const auto stub =
      inference::GRPCInferenceService::NewStub(TestServer::Connect(server_.server().address()));
  const std::string prompt = system_ + "Third?";
  const auto infer = [&](int max_tokens) {
    InferBuilder builder;
    builder.Text("text_input", prompt).Tokens(max_tokens);
    grpc::ClientContext context;
    ModelInferResponse response;
    EXPECT_TRUE(stub->ModelInfer(&context, builder.request(), &response).ok());
  };
  infer(4);
  EXPECT_EQ(tokens() - before, 6 + 4);
  EXPECT_EQ(Run(system_ + "Fourth?").cached_tokens(), system_.size());
  EXPECT_EQ(tokens() - before, 6 + 4 + 7 + 4);
}

// An edge separates its users by metadata.
class EdgeSaltTest : public PrefixTest {
 protected:
  static ServerConfig Config(const std::string& proxies) {
    ServerConfig config = TestConfigWithMetrics();
    config.security.trusted_proxies = {proxies};
    return config;
  }
  static TestServer::Prepare Salts(const std::vector<std::string>& salts) {
    return [salts](grpc::ClientContext& context) {
      for (const std::string& salt : salts) context.AddMetadata("aft-cache-salt", salt);
    };
  }
  uint32_t Cached(TestServer& server, const std::vector<std::string>& salts,
                  const std::string& own = "") {
    v1::GenerateRequest request = Request(system_, 4);
    request.set_cache_salt(own);
    GenerateStream stream(server.inference(), request, Salts(salts));
    const grpc::Status status = stream.Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return stream.finished.usage().cached_tokens();
  }
};

TEST_F(EdgeSaltTest, ATrustedProxyKeepsItsUsersApart) {
  TestServer server(Config("127.0.0.0/8"));
  const auto all = static_cast<uint32_t>(system_.size() - 1);
  for (const uint32_t cached : {0U, 0U, all}) EXPECT_EQ(Cached(server, {"ann"}), cached);
  EXPECT_EQ(Cached(server, {}), 0U);
  EXPECT_EQ(Cached(server, {"bob"}), 0U);
  EXPECT_EQ(Cached(server, {"bob"}, "ann"), 0U);  // his own salt does not replace the edge's
  EXPECT_EQ(Cached(server, {}, "ann"), 0U);
  EXPECT_EQ(Cached(server, {"an"}, "n"), 0U);
  EXPECT_EQ(Cached(server, {"bob", "ann"}), all);  // the edge's own salt is the last one
  GenerateStream stream(server.inference(), Request("x", 1), Salts({std::string(65, 's')}));
  EXPECT_THAT(stream.Finish(), StatusIs(absl::StatusCode::kInvalidArgument,
                                        "aft-cache-salt: must be at most 64 printable ASCII "
                                        "characters"));
}

TEST_F(EdgeSaltTest, SaltsSeparateContextsOfScoresLikePrompts) {
  TestServer server(Config("127.0.0.0/8"));
  const auto cached = [&](const std::vector<std::string>& salts, const std::string& own) {
    v1::ScoreRequest request;
    request.set_text(system_ + "!");
    request.set_context_tokens(static_cast<uint32_t>(system_.size()));
    request.set_cache_salt(own);
    ScoreStream stream(server.inference(), request, Salts(salts));
    EXPECT_TRUE(stream.Finish().ok());
    return stream.event().finished().usage().cached_tokens();
  };
  const auto all = static_cast<uint32_t>(system_.size() - 1);
  EXPECT_EQ(cached({"ann"}, ""), 0U);
  EXPECT_EQ(cached({"ann"}, ""), all);
  EXPECT_EQ(cached({"bob"}, ""), 0U);
  EXPECT_EQ(cached({}, "ann"), 0U);
  EXPECT_EQ(Cached(server, {"ann"}), all);  // a prompt of the same user
}

TEST_F(EdgeSaltTest, AStreamOfInferencesHasTheSaltOfItsUserToo) {
  OipServer server(Config("127.0.0.0/8"));
  const auto infer = [&](const std::string& salt) {
    InferStream stream(server.oip(), Salts({salt}));
    stream.Send(InferBuilder().Text("text_input", system_).Tokens(4).request());
    stream.ReadAll();
    return stream.Finish();
  };
  const auto cached = [&] {
    return server.Metric("aft_prefix_cache_hit_tokens_total{model=\"fake\"}");
  };
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(infer("ann").ok());
  const auto all = static_cast<double>(system_.size() - 1);
  EXPECT_EQ(cached(), all);
  EXPECT_TRUE(infer("bob").ok());
  EXPECT_EQ(cached(), all);
  EXPECT_THAT(infer(std::string(65, 's')), StatusIs(absl::StatusCode::kInvalidArgument,
                                                    testing::StartsWith("aft-cache-salt: ")));
}

TEST_F(EdgeSaltTest, IsIgnoredFromOtherPeers) {
  TestServer server(Config("10.0.0.0/8"));
  const auto all = static_cast<uint32_t>(system_.size() - 1);
  for (const uint32_t cached : {0U, 0U, all}) EXPECT_EQ(Cached(server, {"ann"}), cached);
  EXPECT_EQ(Cached(server, {}), all);
  EXPECT_EQ(Cached(server, {std::string(65, 's')}), all);
}

TEST_F(PrefixTest, ModelInferTakesASalt) {
  const auto stub =
      inference::GRPCInferenceService::NewStub(TestServer::Connect(server_.server().address()));
  for (const char* const salt : {"ann", "bob", "ann"}) {
    InferBuilder builder;
    builder.Text("text_input", system_).Tokens(4);
    builder.Parameter("cache_salt").set_string_param(salt);
    grpc::ClientContext context;
    ModelInferResponse response;
    EXPECT_TRUE(stub->ModelInfer(&context, builder.request(), &response).ok());
  }
  EXPECT_EQ(Misses("cold"), 2);
  EXPECT_EQ(Misses("diverged"), 1);
}

TEST_F(PrefixTest, ScoresWithoutAContextAreNotCached) {
  for (int i = 0; i < 3; ++i) {
    v1::ScoreRequest request;
    request.set_text(system_);
    ScoreStream stream(server_.inference(), request);
    ASSERT_TRUE(stream.Finish().ok());
    EXPECT_EQ(stream.event().finished().scored_tokens(), system_.size() - 1);
  }
  EXPECT_EQ(Run(system_).cache_miss(), v1::CACHE_MISS_COLD);
  EXPECT_EQ(Misses("cold"), 1);
}

TEST_F(PrefixTest, AFailedStreamHasItsCachedTokensInTrailers) {
  for (int i = 0; i < 2; ++i) Run(system_);
  server_.control().Hold();
  GenerateStream stream(server_.inference(), Request(system_, 1000));
  server_.control().RunSteps(3);
  server_.control().FailNext(FakeCall::kCollect, absl::InternalError("boom"));
  server_.control().Resume();
  EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::INTERNAL);
  v1::Usage usage;
  ASSERT_TRUE(usage.ParseFromString(stream.TrailingMetadata("aft-usage-bin")));
  EXPECT_EQ(usage.cached_tokens(), system_.size() - 1);
}

}  // namespace
}  // namespace aft::server
