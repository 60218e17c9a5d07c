#pragma once

#include <CLI/App.hpp>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/lib/aft_client.h"
#include "client/tool/connection_flags.h"
#include "client/tool/output.h"

namespace aft::client {

// Options of every subcommand.
struct CommonFlags : ConnectionFlags {
  int max_resumes = ClientOptions().max_resumes;
};

// Adds those of ConnectionFlags and --max-resumes. `flags` must outlive the parsing.
void AddCommonFlags(CLI::App& app, CommonFlags& flags);

// As MakeClientOptions of ConnectionFlags.
absl::StatusOr<ClientOptions> MakeClientOptions(const CommonFlags& flags);

// A subcommand adds its options to `app` and returns what runs it: called once, after parsing,
// returns the exit code. `flags` must outlive both.
using Command = std::function<int()>;
Command AddGenerate(CLI::App& app, const CommonFlags& flags);
Command AddComplete(CLI::App& app, const CommonFlags& flags);
Command AddTokenize(CLI::App& app, const CommonFlags& flags);
Command AddDetokenize(CLI::App& app, const CommonFlags& flags);
Command AddChat(CLI::App& app, const CommonFlags& flags);
Command AddScore(CLI::App& app, const CommonFlags& flags);
Command AddEncode(CLI::App& app, const CommonFlags& flags);
Command AddInfer(CLI::App& app, const CommonFlags& flags);
Command AddState(CLI::App& app, const CommonFlags& flags);
Command AddModels(CLI::App& app, const CommonFlags& flags);
Command AddRepository(CLI::App& app, const CommonFlags& flags);
Command AddHealth(CLI::App& app, const CommonFlags& flags);

struct Subcommand {
  const char* name;
  const char* what;
  Command (*add)(CLI::App&, const CommonFlags&);
};
inline constexpr Subcommand kSubcommands[] = {
    {"generate", "Continue a prompt, streaming the text", AddGenerate},
    {"complete", "The same as one response, at the end", AddComplete},
    {"chat", "Write a text with a model, in turns", AddChat},
    {"score", "How likely a language model finds a text, token by token", AddScore},
    {"encode", "The vectors of a text", AddEncode},
    {"infer", "The likeliest labels of an image under a classifier", AddInfer},
    {"tokenize", "A text as the ids of a model", AddTokenize},
    {"detokenize", "Ids as text", AddDetokenize},
    {"state", "What generate and score leave behind to go on from", AddState},
    {"models", "List the served models, or describe one", AddModels},
    {"repository", "Have a server load and unload models of its repository", AddRepository},
    {"health", "Exit with 0 only when the server is SERVING", AddHealth},
};

// Adds --deadline; 0 is "none".
void AddDeadline(CLI::App& app, double& seconds);
std::chrono::milliseconds ToMilliseconds(double seconds);

// Runs calls that have `deadline` seconds each, connecting included. Returns what `run` does, or
// kExitUsage after saying on standard error why there is no client.
int RunUnary(const CommonFlags& flags, double deadline, absl::FunctionRef<int(Client&)> run);

// Say on standard error what is wrong, and return the exit code: kExitUsage; that of a failed call.
int UsageError(const absl::Status& status);
int ReportError(const absl::Status& status);

// "[LINE]" on standard error.
void PrintSummary(const std::string& line);

// What to call before each attempt to go on with a broken stream: it says so on standard error, on
// a line of its own. `output` has the stream's text, and is borrowed.
std::function<void(const Resuming&)> PrintResuming(Output& output);

// A line of those for each time that a generation went on.
void PrintResumed(const std::vector<Resumed>& resumed);

// "FINISH_REASON_EOS" -> "eos", "MODEL_STATE_READY" -> "ready".
std::string EnumWord(absl::string_view name, absl::string_view prefix);

}  // namespace aft::client
