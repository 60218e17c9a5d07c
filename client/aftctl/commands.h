#pragma once

#include <CLI/App.hpp>
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

// The flags of every subcommand.
struct CommonFlags : ConnectionFlags {
  int max_resumes = ClientOptions().max_resumes;
};

// Adds the flags of ConnectionFlags, and --max-resumes. `flags` must outlive the parsing.
void AddCommonFlags(CLI::App& app, CommonFlags& flags);

// Does the same as MakeClientOptions(const ConnectionFlags&), and sets max_resumes.
absl::StatusOr<ClientOptions> MakeClientOptions(const CommonFlags& flags);

// Each adds the flags of a subcommand to `app`, and returns the function that runs it. The caller
// calls this function once, after parsing; it returns the exit code. `flags` must outlive the
// parsing and that call.
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
    {"complete", "Continue a prompt, with one response at the end", AddComplete},
    {"chat", "Write a text in turns with a model", AddChat},
    {"score", "Print how likely a language model finds a text", AddScore},
    {"encode", "Print the vectors of a text", AddEncode},
    {"infer", "Print the likeliest labels of an image or a text", AddInfer},
    {"tokenize", "Print the token ids of a text", AddTokenize},
    {"detokenize", "Print the text of token ids", AddDetokenize},
    {"state", "Show, delete, export or import stored states", AddState},
    {"models", "List the served models, or describe one", AddModels},
    {"repository", "List, load or unload the models of a server's repository", AddRepository},
    {"health", "Exit with 0 only if the server is SERVING", AddHealth},
};

// Adds --deadline. 0 means no deadline.
void AddDeadline(CLI::App& app, double& seconds);

// Runs calls that each have `deadline` seconds, including connecting. Returns the result of `run`,
// or kExitUsage after an error message on standard error if no client could be made.
int RunUnary(const CommonFlags& flags, double deadline, absl::FunctionRef<int(Client&)> run);

// These print an error on standard error and return the exit code: UsageError kExitUsage,
// ReportError that of a failed call.
int UsageError(const absl::Status& status);
int ReportError(const absl::Status& status);

// Prints "[LINE]" on standard error.
void PrintSummary(const std::string& line);

// Returns a function that says on standard error, on a line of its own, that a broken stream is
// being resumed. `output`, which is borrowed, has the stream's text.
std::function<void(const Resuming&)> PrintResuming(Output& output);

// Prints a line for each time that a generation was resumed.
void PrintResumed(const std::vector<Resumed>& resumed);

// Converts "FINISH_REASON_EOS" to "eos", and "MODEL_STATE_READY" to "ready".
std::string EnumWord(absl::string_view name, absl::string_view prefix);

}  // namespace aft::client
