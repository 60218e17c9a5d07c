#include "tests/integration/methods/call_contract_cases.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tests/integration/oip/fixture.h"

namespace aft::server {
namespace {

constexpr int kLargeTokens = 3'000;
constexpr size_t kLongText = 20'000;

template <int kSequences>
std::string Generation(const std::string& model, Ask ask, const std::string& /*id*/) {
  const bool shorter = ask == Ask::kShort || ask == Ask::kBad;
  v1::GenerateRequest request = Request(ask == Ask::kBad ? "" : "hello",
                                        static_cast<uint32_t>(shorter              ? 3
                                                              : ask == Ask::kLarge ? kLargeTokens
                                                                                   : kEndless));
  request.set_model(model);
  if (!shorter) request.mutable_output()->set_top_logprobs(20);
  if (kSequences > 1) request.set_n(kSequences);
  return request.SerializeAsString();
}

// A request with one text or with two.
template <typename Request, int kSequences>
std::string Texts(const std::string& model, Ask ask, const std::string& /*id*/) {
  Request request;
  request.set_model(model);
  const bool scores = std::is_same_v<Request, v1::ScoreRequest>;
  const bool longer = scores && (ask == Ask::kLong || ask == Ask::kLarge);
  const std::string first = longer ? std::string(kLongText, 'x') : "hello";
  const std::string second = longer ? std::string(kLongText, 'y') : "hi";
  if constexpr (std::is_same_v<Request, v1::ScoreRequest>) {
    if (longer) request.mutable_output()->set_top_logprobs(20);
  }
  if (kSequences == 1) {
    request.set_text(ask == Ask::kBad ? "" : first);
  } else {
    request.add_texts()->set_text(first);
    request.add_texts()->set_text(ask == Ask::kBad ? "" : second);
  }
  return request.SerializeAsString();
}

std::string FillerTexts(const std::string& model, Ask /*ask*/, const std::string& /*id*/) {
  v1::EncodeRequest request;
  request.set_model(model);
  for (int i = 0; i < kFillerTexts; ++i) request.add_texts()->set_text("filler");
  return request.SerializeAsString();
}

std::string Tokens(const std::string& model, Ask ask, const std::string& /*id*/) {
  v1::TokenizeRequest request;
  request.set_model(model);
  // The bad text is too long, because an empty one is allowed.
  request.set_text(ask == Ask::kBad ? std::string(1'048'577, 'x') : "hello");
  return request.SerializeAsString();
}

std::string HeldText(const std::string& model, Ask /*ask*/, const std::string& /*id*/) {
  v1::TokenizeRequest request;
  request.set_model(model);
  request.set_text("held");
  return request.SerializeAsString();
}

std::string Ids(const std::string& model, Ask ask, const std::string& /*id*/) {
  v1::DetokenizeRequest request;
  request.set_model(model);
  request.add_token_ids(ask == Ask::kBad ? 257 : 'h');
  return request.SerializeAsString();
}

template <bool kStreams>
std::string InferGeneration(const std::string& model, Ask ask, const std::string& id) {
  InferBuilder builder(model);
  builder.Id(id).Text("text_input", ask == Ask::kBad ? "" : "hello");
  if (ask == Ask::kShort || ask == Ask::kBad) {
    builder.Tokens(3);
  } else {
    builder.Text("sampling_parameters",
                 absl::StrCat(R"({"seed": 7, "ignore_eos": true, "logprobs": 20, "max_tokens": )",
                              ask == Ask::kLarge ? kLargeTokens : kEndless, "}"));
    builder.Flag("return_logprobs");
  }
  builder.Flag("stream", kStreams);
  return builder.request().SerializeAsString();
}

std::string InferScoring(const std::string& model, Ask ask, const std::string& id) {
  InferBuilder builder(model);
  const bool longer = ask == Ask::kLong || ask == Ask::kLarge;
  builder.Id(id).Flag("score");
  builder.Text("text_input", longer             ? std::string(kLongText, 'x')
                             : ask == Ask::kBad ? ""
                                                : "hello");
  return builder.request().SerializeAsString();
}

std::string InferEncoding(const std::string& model, Ask ask, const std::string& id) {
  InferBuilder builder(model);
  builder.Id(id).Raw("text_input", "BYTES", {2},
                     RawText("hello") + RawText(ask == Ask::kBad ? "" : "hi"));
  return builder.request().SerializeAsString();
}

using Json = nlohmann::json;

// In a conversation the prompt is never empty: even for an empty message the template adds a
// paragraph break. So another field is the bad one there.
template <int kSequences, bool kStreams, bool kChat = false>
std::string HttpGeneration(const std::string& model, Ask ask, const std::string& /*id*/) {
  const bool shorter = ask == Ask::kShort || ask == Ask::kBad;
  const auto most = static_cast<uint32_t>(ask == Ask::kBad && kChat ? 0
                                          : shorter                 ? 3
                                          : ask == Ask::kLarge      ? kLargeTokens
                                                                    : kEndless);
  Json body = {{"model", model}, {"max_tokens", most}, {"seed", 7}, {"ignore_eos", true}};
  if (kChat) {
    body["messages"] = {{{"role", "user"}, {"content", "hello"}}};
    if (!shorter) body["top_logprobs"] = 20;
  } else {
    body["prompt"] = ask == Ask::kBad ? "" : "hello";
  }
  if (!shorter) body["logprobs"] = kChat ? Json(true) : Json(20);
  if (kSequences > 1) body["n"] = kSequences;
  if (kStreams) body["stream"] = true;
  return body.dump();
}

// The response is not stored, because the contract requires that no state is left.
std::string HttpResponse(const std::string& model, Ask ask, const std::string& /*id*/) {
  const int most = ask == Ask::kBad     ? 0
                   : ask == Ask::kShort ? 3
                   : ask == Ask::kLarge ? kLargeTokens
                                        : static_cast<int>(kEndless);
  return Json{{"model", model},     {"input", "hello"}, {"max_output_tokens", most},
              {"ignore_eos", true}, {"store", false},   {"stream", true}}
      .dump();
}

template <int kSequences>
std::string HttpEmbeddings(const std::string& model, Ask ask, const std::string& /*id*/) {
  Json body = {{"model", model}, {"input", ask == Ask::kBad ? "" : "hello"}};
  if (kSequences > 1) body["input"] = {"hello", ask == Ask::kBad ? "" : "hi"};
  return body.dump();
}

std::string HttpTokens(const std::string& model, Ask ask, const std::string& /*id*/) {
  const std::string text = ask == Ask::kBad ? std::string(1'048'577, 'x') : "hello";
  return Json{{"model", model}, {"prompt", text}}.dump();
}

std::string HttpIds(const std::string& model, Ask ask, const std::string& /*id*/) {
  return Json{{"model", model}, {"tokens", {ask == Ask::kBad ? 257 : 'h'}}}.dump();
}

#define AFT_SERVICE "/aft.v1.InferenceService/"
#define INFER_SERVICE "/inference.GRPCInferenceService/"
constexpr CarrierKind kStream = CarrierKind::kServerStream;
constexpr CarrierKind kOne = CarrierKind::kUnary;
constexpr CarrierKind kHttp = CarrierKind::kHttp;
constexpr CarrierKind kEvents = CarrierKind::kHttpStream;
constexpr char kEmpty[] = "text: must not be empty";
constexpr char kEmptySecond[] = "texts[1].text: must not be empty";
constexpr char kEmptyInput[] = "text_input: must not be empty";
constexpr char kEmptyPrompt[] = "prompt: must not be empty";
constexpr char kEmptyRow[] = "text_input[1]: must not be empty";

const Case kCases[] = {
    {"Generate", "Generate", AFT_SERVICE "Generate", kStream, "fake", 1, true, kEmpty, 5, 3,
     "length", Generation<1>},
    {"GenerateTwo", "Generate", AFT_SERVICE "Generate", kStream, "fake", 2, true, kEmpty, 5, 6,
     "length", Generation<2>},
    {"Score", "Score", AFT_SERVICE "Score", kStream, "fake", 1, true, kEmpty, 5, 0, "done",
     Texts<v1::ScoreRequest, 1>},
    {"ScoreTexts", "Score", AFT_SERVICE "Score", kStream, "fake", 2, true, kEmptySecond, 7, 0,
     "done", Texts<v1::ScoreRequest, 2>},
    {"Encode", "Encode", AFT_SERVICE "Encode", kStream, "encoder", 1, true, kEmpty, 5, 0, "done",
     Texts<v1::EncodeRequest, 1>},
    {"EncodeTexts", "Encode", AFT_SERVICE "Encode", kStream, "encoder", 2, true, kEmptySecond, 7, 0,
     "done", Texts<v1::EncodeRequest, 2>},
    {"Complete", "Complete", AFT_SERVICE "Complete", kOne, "fake", 1, true, kEmpty, 5, 3, "length",
     Generation<1>},
    {"CompleteTwo", "Complete", AFT_SERVICE "Complete", kOne, "fake", 2, true, kEmpty, 5, 6,
     "length", Generation<2>},
    {"InferGeneration", "ModelInfer", INFER_SERVICE "ModelInfer", CarrierKind::kInfer, "fake", 1,
     true, kEmptyInput, 5, 3, "length", InferGeneration<false>},
    {"InferScoring", "ModelInfer", INFER_SERVICE "ModelInfer", CarrierKind::kInfer, "fake", 1, true,
     kEmptyInput, 5, 0, "done", InferScoring},
    {"InferEncoding", "ModelInfer", INFER_SERVICE "ModelInfer", CarrierKind::kInfer, "encoder", 2,
     true, kEmptyRow, 7, 0, "done", InferEncoding},
    {"StreamInferTokens", "ModelStreamInfer", INFER_SERVICE "ModelStreamInfer",
     CarrierKind::kInferStream, "fake", 1, true, kEmptyInput, 5, 3, "length",
     InferGeneration<true>},
    {"StreamInferWhole", "ModelStreamInfer", INFER_SERVICE "ModelStreamInfer",
     CarrierKind::kInferStream, "fake", 1, true, kEmptyInput, 5, 3, "length",
     InferGeneration<false>},
    {"StreamInferEncoding", "ModelStreamInfer", INFER_SERVICE "ModelStreamInfer",
     CarrierKind::kInferStream, "encoder", 2, true, kEmptyRow, 7, 0, "done", InferEncoding},
    {"Tokenize", "Tokenize", AFT_SERVICE "Tokenize", kOne, "fake", 1, false,
     "text: must have at most 1048576 bytes, got 1048577", 0, 0, "done", Tokens},
    {"Detokenize", "Detokenize", AFT_SERVICE "Detokenize", kOne, "fake", 1, false,
     "token_ids[0]: must be below 257, the size of the vocabulary, got 257", 0, 0, "done", Ids},
    {"HttpCompletion", "Completions", "/v1/completions", kHttp, "fake", 1, true, kEmptyPrompt, 5, 3,
     "length", HttpGeneration<1, false>},
    {"HttpCompletionTwo", "Completions", "/v1/completions", kHttp, "fake", 2, true, kEmptyPrompt, 5,
     6, "length", HttpGeneration<2, false>},
    {"HttpStream", "Completions", "/v1/completions", kEvents, "fake", 1, true, kEmptyPrompt, 5, 3,
     "length", HttpGeneration<1, true>},
    {"HttpStreamTwo", "Completions", "/v1/completions", kEvents, "fake", 2, true, kEmptyPrompt, 5,
     6, "length", HttpGeneration<2, true>},
    {"HttpChat", "ChatCompletions", "/v1/chat/completions", kEvents, "fake", 1, true,
     "max_tokens: must be in [1, 1048576], got 0", 7, 3, "length", HttpGeneration<1, true, true>},
    {"HttpResponse", "Responses", "/v1/responses", kEvents, "fake", 1, true,
     "max_output_tokens: must be in [1, 1048576], got 0", 7, 3, "length", HttpResponse},
    {"HttpEmbedding", "Embeddings", "/v1/embeddings", kHttp, "encoder", 1, true,
     "input: must not be empty", 5, 0, "done", HttpEmbeddings<1>},
    {"HttpEmbeddings", "Embeddings", "/v1/embeddings", kHttp, "encoder", 2, true,
     "input[1]: must not be empty", 7, 0, "done", HttpEmbeddings<2>},
    {"HttpClassify", "Classify", "/classify", kHttp, "encoder", 2, true,
     "input[1]: must not be empty", 7, 0, "done", HttpEmbeddings<2>},
    {"HttpTokenize", "Tokenize", "/tokenize", kHttp, "fake", 1, false,
     "prompt: must have at most 1048576 bytes, got 1048577", 0, 0, "done", HttpTokens},
    {"HttpDetokenize", "Detokenize", "/detokenize", kHttp, "fake", 1, false,
     "tokens[0]: must be below 257, the size of the vocabulary, got 257", 0, 0, "done", HttpIds},
};

const Case kEncodingFiller = {
    "Filler", "Encode", AFT_SERVICE "Encode", kStream, "encoder", 1, true, kEmpty, 0,
    0,        "done",   FillerTexts};

const Case kHeldTokenizing = {
    "Held", "Tokenize", AFT_SERVICE "Tokenize", kOne, "fake", 1, false, kEmpty, 0, 0,
    "done", HeldText};

}  // namespace

bool Case::streams() const {
  return carrier == CarrierKind::kServerStream || carrier == CarrierKind::kHttpStream ||
         std::string(name) == "StreamInferTokens";
}

std::string Case::texts() const {
  if (sequences == 1 || infer() || generates()) return "";
  return http() ? "input" : "texts";
}

void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

std::vector<Case> AllCases() { return {std::begin(kCases), std::end(kCases)}; }

std::vector<Case> EngineCases() {
  std::vector<Case> cases = AllCases();
  std::erase_if(cases, [](const Case& one) { return !one.engine; });
  return cases;
}

std::vector<Case> LongCases() {
  std::vector<Case> cases = EngineCases();
  std::erase_if(cases, [](const Case& one) { return one.encoder(); });
  return cases;
}

std::vector<Case> OverGrpc(std::vector<Case> cases) {
  std::erase_if(cases, [](const Case& one) { return one.http(); });
  return cases;
}

Case HeldTokenizing() { return kHeldTokenizing; }

Case FillerOf(const Case& one) {
  if (one.encoder()) return kEncodingFiller;
  return kCases[one.sequences > 1 ? 1 : 0];
}

}  // namespace aft::server
