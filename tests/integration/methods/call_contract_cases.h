#pragma once

#include <ostream>
#include <string>
#include <vector>

// The methods and carriers of calls, as far as the tests of the call contract need to know them.
namespace aft::server {

// How a request and its responses travel.
enum class CarrierKind {
  kServerStream,  // a stream of responses, then a status
  kUnary,         // one response of aft.v1
  kInfer,         // ModelInfer
  kInferStream,   // ModelStreamInfer, here with one request; an error is a response
  kHttp,          // OpenAI's API, one JSON object
  kHttpStream,    // OpenAI's API, server-sent events
};

// kLong takes many steps and, if it generates, does not end. kLarge ends with an answer larger than
// a connection's window; for an encoder this needs wide vectors.
enum class Ask { kShort, kLong, kLarge, kBad };

struct Case {
  const char* name;
  const char* method;  // the label of its metrics
  const char* path;
  CarrierKind carrier;
  const char* model;  // "fake" or "encoder"
  int sequences;      // the number of sequences in the engine
  bool engine;        // an engine answers; otherwise a thread of the decode pool
  // The error message for kBad.
  const char* bad_field;
  // The values in the log line of kShort.
  int prompt_tokens;
  int generated_tokens;
  const char* reason;
  // Makes the message's bytes, over HTTP the body. `id` is the request's id, if its message has
  // one.
  std::string (*message)(const std::string& model, Ask ask, const std::string& id);

  bool encoder() const { return model[0] == 'e'; }
  bool generates() const { return generated_tokens > 0; }
  bool infer() const { return carrier == CarrierKind::kInfer || infer_stream(); }
  bool infer_stream() const { return carrier == CarrierKind::kInferStream; }
  bool http() const { return carrier == CarrierKind::kHttp || carrier == CarrierKind::kHttpStream; }
  // Whether the answer is sent while it is generated.
  bool streams() const;
  // The name that errors give to the field of texts when they name the failed text ("texts" or
  // "input"). It is empty if errors do not name the text.
  std::string texts() const;
};

void PrintTo(const Case& one, std::ostream* out);

// The cases that an engine answers, those of them that take many steps with kLong, and all cases.
std::vector<Case> EngineCases();
std::vector<Case> LongCases();
std::vector<Case> AllCases();
// Keeps only the cases over gRPC.
std::vector<Case> OverGrpc(std::vector<Case> cases);

// A call that keeps the engine of `one` busy for long with the same number of sequences: a
// generation, or an encoding of kFillerTexts texts.
inline constexpr int kFillerTexts = 400;
Case FillerOf(const Case& one);

// A Tokenize call with the text "held".
Case HeldTokenizing();

}  // namespace aft::server
