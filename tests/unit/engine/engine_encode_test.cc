// Texts that a language model encodes, alone and alongside generations.

#include <utility>
#include <vector>

#include "server/engine/pooling.h"
#include "tests/support/same_bits.h"
#include "tests/unit/engine/engine_fixture.h"

namespace aft::server {
namespace {

using ::testing::HasSubstr;

constexpr Pooling kPoolings[] = {Pooling::kNone, Pooling::kMean, Pooling::kFirst, Pooling::kLast};

class EngineEncodeTest : public EngineTest {
 protected:
  using VectorsSink = std::shared_ptr<RecordingVectorSink>;

  EncodingRequest Encoding(size_t tokens, Pooling pooling, bool normalize = false) {
    auto request = Arriving<EncodingRequest>();
    for (size_t i = 0; i < tokens; ++i) {
      request.text.push_back(static_cast<TokenId>((arrived + 7 * i) % 256));
    }
    request.pooling = pooling;
    request.normalize = normalize;
    return request;
  }
  VectorsSink Encode(const EncodingRequest& request) {
    auto sink = std::make_shared<RecordingVectorSink>();
    EXPECT_TRUE(engine->EncodeTexts({request}, {sink}).ok());
    return sink;
  }

  // Expects the pooled vectors of the whole text.
  static void ExpectVectors(RecordingVectorSink& sink, const EncodingRequest& request) {
    const Outcome outcome = sink.Wait();
    EXPECT_EQ(outcome.status, absl::OkStatus());
    EXPECT_EQ(outcome.reason, FinishReason::kDone);
    EXPECT_EQ(outcome.usage.prompt_tokens, request.text.size());
    EXPECT_EQ(outcome.computed_tokens, request.text.size());
    EXPECT_GE(outcome.batch_rows, 1U);
    EXPECT_TRUE(SameBits(sink.vectors(),
                         Pool(FakeModelRunner::Hidden(request.text), FakeModelRunner::kHiddenWidth,
                              request.pooling, request.normalize)));
  }
};

TEST_F(EngineEncodeTest, TheCutIntoChunksChangesNoBit) {
  model.slots = 2;
  model.max_step_tokens = 8;
  Start();
  double tokens = 0;
  for (const Pooling pooling : kPoolings) {
    for (const size_t size : {size_t{1}, size_t{8}, size_t{9}, size_t{100}}) {
      const int64_t before = control->step_count();
      const EncodingRequest request = Encoding(size, pooling, /*normalize=*/size == 100);
      ExpectVectors(*Encode(request), request);
      EXPECT_EQ(control->step_count() - before, static_cast<int64_t>((size + 7) / 8));
      tokens += static_cast<double>(size);
    }
  }
  EXPECT_EQ(metrics.encoded_tokens.Value(), tokens);
  EXPECT_EQ(metrics.finished(Ending::kDone).Value(), 16);
}

TEST_F(EngineEncodeTest, PoolingTheLastVectorComputesNoOther) {
  model.max_step_tokens = 8;
  Start();
  Encode(Encoding(20, Pooling::kLast))->Wait();
  int64_t hidden = 0;
  for (const StepInput& step : control->steps()) {
    for (const StepRow& row : step.rows) hidden += row.hidden;
  }
  EXPECT_EQ(hidden, 1);
}

TEST_F(EngineEncodeTest, TextsAndGenerationsShareStepsAndDoNotHarmEachOther) {
  model.slots = 5;
  model.max_step_tokens = 16;
  Start();
  std::vector<std::pair<EncodingRequest, VectorsSink>> encoded;
  std::vector<std::pair<GenerationRequest, Sink>> generated;
  for (int i = 0; i < 40; ++i) {
    const auto tokens = static_cast<size_t>(1 + random.Below(70));
    if (i % 2 == 0) {
      const EncodingRequest request = Encoding(tokens, kPoolings[random.Below(4)]);
      encoded.emplace_back(request, Encode(request));
    } else {
      const GenerationRequest request = Request(std::vector<TokenId>(tokens, 9), 1 + i % 30);
      generated.emplace_back(request, Submit(request).sink);
    }
  }
  for (const auto& [request, sink] : encoded) ExpectVectors(*sink, request);
  for (const auto& [request, sink] : generated) ExpectServed(sink, request);
}

TEST_F(EngineEncodeTest, ATextMayFillTheModelsWholeLength) {
  model.max_seq_len = 12;
  Start();
  const EncodingRequest request = Encoding(12, Pooling::kMean);
  ExpectVectors(*Encode(request), request);
  const auto refused = engine->EncodeTexts(
      {request, Encoding(13, Pooling::kMean)},
      {std::make_shared<RecordingVectorSink>(), std::make_shared<RecordingVectorSink>()});
  EXPECT_THAT(refused.status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 12 tokens, got 13")));
  EXPECT_EQ(control->step_count(), 1);
}

TEST_F(EngineEncodeTest, VectorsThatAreNotFiniteEndTheirTextAlone) {
  const uint64_t bad = FakeModelRunner::Consume(FakeModelRunner::kEmptyHash, 200, 0);
  model.next_token = [bad](uint64_t hash, int64_t) { return hash == bad ? kNoToken : 'x'; };
  Start();
  EncodingRequest overflows = Encoding(5, Pooling::kMean);
  overflows.text[0] = 200;
  const VectorsSink failed = Encode(overflows);
  const EncodingRequest request = Encoding(5, Pooling::kMean);
  ExpectVectors(*Encode(request), request);
  EXPECT_THAT(failed->Wait().status, StatusIs(absl::StatusCode::kInternal, HasSubstr("finite")));
  EXPECT_TRUE(failed->parts().empty());
}

TEST_F(EngineEncodeTest, AParkedTextIsEncodedWhole) {
  model.max_step_tokens = 4;
  model.slots = 1;
  EncodingRequest request = Encoding(200, Pooling::kMean);
  request.service_class = ServiceClass::kBatch;
  StartHeld();
  const VectorsSink sink = Encode(request);
  control->RunSteps(4);
  GenerationRequest urgent = Request({5, 6}, 5);
  urgent.service_class = ServiceClass::kInteractive;
  const Sink served = Submit(urgent).sink;
  control->Resume();
  ExpectServed(served, urgent);
  ExpectVectors(*sink, request);
  EXPECT_EQ(metrics.parks.Value(), 1);
}

TEST_F(EngineEncodeTest, ACancelBetweenTwoChunksFreesTheSlot) {
  model.max_steps_in_flight = 1;  // the test counts steps
  model.slots = 1;
  model.max_step_tokens = 8;
  StartHeld();
  auto sink = std::make_shared<RecordingVectorSink>();
  const auto handle = engine->EncodeTexts({Encoding(100, Pooling::kMean)}, {sink});
  ASSERT_TRUE(handle.ok()) << handle.status();
  control->RunSteps(2);
  engine->Cancel(*handle);
  control->Resume();
  EXPECT_EQ(sink->Wait().status.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(sink->parts().empty());
  ExpectServes();
}

}  // namespace
}  // namespace aft::server
