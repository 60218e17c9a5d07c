#pragma once

#include <ostream>
#include <string>
#include <vector>

// The methods and carriers that a call comes by, as the contract of a call needs to know them.
namespace aft::server {

// What a request goes by and its responses come by.
enum class CarrierKind {
  kServerStream,  // a stream of responses, then a status
  kUnary,         // one response of aft.v1
  kInfer,         // ModelInfer
  kInferStream,   // ModelStreamInfer, here with one request; an error is a response
  kHttp,          // OpenAI's API, one JSON object
  kHttpStream,    // the same, server-sent events
};

// kLong takes many steps, without an end where something is generated. kLarge ends, and its answer
// is larger than the window of a connection (an encoder's: where its vectors are wide).
enum class Ask { kShort, kLong, kLarge, kBad };

struct Case {
  const char* name;
  const char* method;  // label of its metrics
  const char* path;
  CarrierKind carrier;
  const char* model;  // "fake", or "encoder"
  int sequences;      // that the engine has of it
  bool engine;        // that answers; else a thread of the decode pool does
  // The message for kBad.
  const char* bad_field;
  // What the log says of kShort.
  int prompt_tokens;
  int generated_tokens;
  const char* reason;
  // The message's bytes, of HTTP the body. `id`: of the request, where it has one.
  std::string (*message)(const std::string& model, Ask ask, const std::string& id);

  bool encoder() const { return model[0] == 'e'; }
  bool generates() const { return generated_tokens > 0; }
  bool infer() const { return carrier == CarrierKind::kInfer || infer_stream(); }
  bool infer_stream() const { return carrier == CarrierKind::kInferStream; }
  bool http() const { return carrier == CarrierKind::kHttp || carrier == CarrierKind::kHttpStream; }
  // Its answer leaves as it comes to be.
  bool streams() const;
  // Its texts are called so where errors name the one that has failed: "texts"; "": they do not.
  std::string texts() const;
};

void PrintTo(const Case& one, std::ostream* out);

// All that an engine answers; those of them that take many steps with kLong; all methods.
std::vector<Case> EngineCases();
std::vector<Case> LongCases();
std::vector<Case> AllCases();
// Leaves those that gRPC carries.
std::vector<Case> OverGrpc(std::vector<Case> cases);

// A call that keeps the engine of `one` busy for long, with as many sequences: a generation, or an
// encoding of kFillerTexts texts.
inline constexpr int kFillerTexts = 400;
Case FillerOf(const Case& one);

// A Tokenize of the text "held".
Case HeldTokenizing();

}  // namespace aft::server
