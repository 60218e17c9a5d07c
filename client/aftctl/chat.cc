// A text that a user and the model write in turns. The server stores the state after every turn, so
// no turn reads the text again, and the last turn can be taken back.
#include <signal.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "client/aftctl/commands.h"
#include "client/aftctl/generation_flags.h"
#include "client/aftctl/line_editor.h"
#include "client/tool/exit_code.h"
#include "client/tool/flag_values.h"
#include "client/tool/interrupt.h"
#include "client/tool/output.h"

namespace aft::client {
namespace {

constexpr char kHelp[] =
    "Each line that you type is a message, in the format in which the model was trained on\n"
    "conversations. Without such a format, or with --raw, the line is added to the text as it is.\n"
    "Then the model continues the text. Ctrl-C stops the answer and takes the turn back.\n"
    "  /retry      take the last turn back, and answer its line again\n"
    "  /edit       take the last turn back, and edit its line\n"
    "  /save FILE  write the text to a file, and print the id of the state after it\n"
    "  /help       print this help\n"
    "  /quit       end the chat, like Ctrl-D\n"
    "A line that begins with // is text that begins with /.\n";

// Deleting is a courtesy: a state that is not deleted expires. So a server that does not answer
// does not hold up the next turn, or the end, for the time that an answer may take.
constexpr std::chrono::seconds kDeleteDeadline{10};

struct ChatFlags {
  v1::GenerateRequest request;  // sent with every turn
  std::string previous;         // id of a state
  std::string ended_by;         // the stop string that ended the answer in that state
  double deadline = 600;
  bool raw = false;  // lines are no messages
};

class Chat {
 public:
  Chat(Client& client, const ChatFlags& flags, Output& output)
      : client_(client),
        flags_(flags),
        output_(output),
        state_(flags.previous),
        ended_by_(flags.ended_by) {}

  // Runs until there are no more lines. Returns the exit code.
  int Run(LineEditor& editor);

 private:
  struct Turn {
    std::string state;  // the state that the turn continued; empty: it began the text
    std::string line;
    size_t text = 0;       // length in bytes of the text before the turn
    std::string ended_by;  // as in Chat, before the turn
  };

  // Each returns false if the chat is over; the error of output_ or exit_code_ then says why.
  bool Obey(const std::string& command);
  bool Answer(std::string line, bool again);
  bool ReportFailedTurn(const absl::Status& error, const Interrupt& interrupt);
  bool GoOn(const Interrupt& interrupt);
  void End();
  absl::Status FindFormat(CancelToken& cancel);
  std::string Prompt(const std::string& line) const;
  void TakeBack();
  bool Save(const std::string& path);
  void Forget(const std::string& state);
  void DeleteUnneeded(CancelToken& cancel);

  Client& client_;
  const ChatFlags& flags_;
  Output& output_;
  bool has_format_ = false;               // whether format_ is known
  std::optional<v1::ChatFormat> format_;  // of messages; without it lines are no messages
  std::string state_;                     // the state after the text; empty: none
  std::string ended_by_;                  // the stop string that ended the last answer, if one did
  std::string text_;                      // the part that this chat has shown
  std::optional<Turn> last_;              // the turn that can be taken back
  std::vector<std::string> unneeded_;     // states to delete
  std::string draft_;                     // pre-filled in the next line
  int exit_code_ = kExitOk;
};

int Chat::Run(LineEditor& editor) {
  if (editor.is_terminal()) {
    PrintSummary(
        "type a line, and the model continues the text; /help lists the commands, Ctrl-D ends");
  }
  while (true) {
    std::optional<std::string> line = editor.Read(std::exchange(draft_, ""));
    if (!line || *line == "/quit") break;
    const bool command = absl::StartsWith(*line, "/") && !absl::StartsWith(*line, "//");
    if (!command && absl::StartsWith(*line, "/")) line->erase(0, 1);
    if (!(command ? Obey(*line) : Answer(*std::move(line), /*again=*/false))) {
      const int code = OutputCode("aftctl", output_);
      return code != kExitOk ? code : exit_code_;
    }
  }
  End();
  return exit_code_;
}

// Says how to continue, and deletes the state before the last turn.
void Chat::End() {
  if (state_ != flags_.previous) {
    std::string command = absl::StrCat("aftctl chat --previous ", state_);
    if (!ended_by_.empty()) {
      // Within the quotes of a shell, a quote needs another form than \'.
      absl::StrAppend(&command, " --ended-by '",
                      absl::StrReplaceAll(absl::Utf8SafeCEscape(ended_by_), {{"\\'", "\\047"}}),
                      "'");
    }
    PrintSummary(absl::StrCat("to continue: ", command));
  }
  // After an interrupt the server may not answer.
  if (!unneeded_.empty() || !last_ || last_->state == state_) return;
  Forget(last_->state);
  CancelToken cancel;
  const Interrupt interrupt(cancel);
  DeleteUnneeded(cancel);
  GoOn(interrupt);  // for the exit code
}

bool Chat::Obey(const std::string& command) {
  absl::string_view path = command;
  if (command == "/help") return output_.Write(kHelp);
  if (absl::ConsumePrefix(&path, "/save ")) return Save(std::string(path));
  if (command != "/retry" && command != "/edit") {
    PrintError("aftctl", absl::StrCat("there is no command ", command, "; /help lists them"));
    return true;
  }
  if (!last_) {
    PrintError("aftctl", "there is no turn to take back");
    return true;
  }
  const std::string line = last_->line;
  TakeBack();
  if (command == "/retry") return Answer(line, /*again=*/true);
  draft_ = absl::StrCat(absl::StartsWith(line, "/") ? "/" : "", line);  // Run takes the / away
  CancelToken cancel;
  const Interrupt interrupt(cancel);
  DeleteUnneeded(cancel);
  return GoOn(interrupt);
}

// Removes the last turn. The state after it is not needed any more.
void Chat::TakeBack() {
  if (state_ != last_->state) Forget(state_);
  state_ = last_->state;
  text_.resize(last_->text);
  ended_by_ = last_->ended_by;
  last_.reset();
}

// Asks the server for the format of the model that answers.
absl::Status Chat::FindFormat(CancelToken& cancel) {
  AFT_ASSIGN_OR_RETURN(const v1::ListResponse list, client_.ListModels({.cancel = &cancel}));
  const std::string& name = flags_.request.model();
  for (const v1::Model& model : list.models()) {
    const bool answers = name.empty() ? list.models_size() == 1 : model.name() == name;
    if (answers && model.has_chat_format()) format_ = model.chat_format();
  }
  has_format_ = true;
  return absl::OkStatus();
}

// The text between the last answer and the next one.
std::string Chat::Prompt(const std::string& line) const {
  if (!format_) return line + "\n";
  const std::string text =
      absl::StrCat(state_.empty() ? "" : format_->assistant_suffix(), format_->user_prefix(),
                   absl::StripAsciiWhitespace(line), format_->user_suffix(), format_->answer());
  return std::string(absl::StripPrefix(text, ended_by_));  // the model has read it already
}

// `again`: the turn before had the same line.
bool Chat::Answer(std::string line, bool again) {
  // The turn before this one cannot be taken back any more. This one can, whatever its result is.
  if (last_ && last_->state != state_) Forget(last_->state);
  last_ =
      Turn{.state = state_, .line = std::move(line), .text = text_.size(), .ended_by = ended_by_};
  CancelToken cancel;
  const Interrupt interrupt(cancel);
  if (!flags_.raw && !has_format_) {
    if (const absl::Status found = FindFormat(cancel); !found.ok()) {
      return ReportFailedTurn(found, interrupt);
    }
  }
  v1::GenerateRequest request = flags_.request;
  if (format_ && request.stop().strings().empty()) {
    *request.mutable_stop()->mutable_strings() = format_->stop();
  }
  v1::SamplingOptions& sampling = *request.mutable_sampling();
  if (again && sampling.has_seed()) sampling.clear_seed();  // it would give the same answer
  if (!state_.empty()) {
    request.mutable_previous()->set_state_id(state_);
    request.clear_initial_state();  // the first turn has begun from it
  }
  request.mutable_store();
  const std::string text = Prompt(last_->line);
  SetText(text, request);
  std::vector<Resumed> resumed;
  const auto result =
      client_.Generate(request,
                       [&](const v1::GenerateResponse& event) {
                         const std::string& delta = event.delta().text();
                         if (!output_.Write(output_.is_terminal() ? ForTerminal(delta) : delta))
                           cancel.Cancel();
                       },
                       {.cancel = &cancel,
                        .on_resuming = PrintResuming(output_),
                        .on_resumed = [&](const Resumed& one) { resumed.push_back(one); }});
  output_.EndLine();
  PrintResumed(resumed);
  if (output_.error() != 0) return false;
  if (result.ok() && !result->finished.has_state()) {
    exit_code_ = ReportError(absl::DataLossError("the answer came without its state"));
    return false;
  }
  if (result.ok()) {
    exit_code_ = kExitOk;
    state_ = result->finished.state().id();
    ended_by_ = result->finished.stop_string();
    absl::StrAppend(&text_, text, result->text);
    if (!request.stop().include_stop_string()) absl::StrAppend(&text_, ended_by_);
  } else if (!ReportFailedTurn(result.status(), interrupt)) {
    return false;
  }
  DeleteUnneeded(cancel);
  return GoOn(interrupt);
}

// SIGTERM ends the chat, and Ctrl-C does not.
bool Chat::GoOn(const Interrupt& interrupt) {
  if (interrupt.exit_code() != 128 + SIGTERM) return true;
  exit_code_ = interrupt.exit_code();
  return false;
}

bool Chat::ReportFailedTurn(const absl::Status& error, const Interrupt& interrupt) {
  if (!GoOn(interrupt)) return false;
  if (interrupt.exit_code() != 0) {
    PrintSummary("stopped: the text is as it was before this turn");
  } else {
    exit_code_ = ReportError(error);
  }
  return true;
}

bool Chat::Save(const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  file << text_;
  file.close();
  if (!file) {
    PrintError("aftctl", absl::StrCat("cannot write ", path));
  } else {
    PrintSummary(
        absl::StrCat(text_.size(), " bytes; the state is ", state_.empty() ? "none yet" : state_));
  }
  return true;
}

// Remembers that a state is not needed any more, if this chat has stored it.
void Chat::Forget(const std::string& state) {
  if (!state.empty() && state != flags_.previous) unneeded_.push_back(state);
}

// A state that is missing is no error. After an interrupt the states wait for the next turn.
void Chat::DeleteUnneeded(CancelToken& cancel) {
  while (!unneeded_.empty() && !cancel.cancelled()) {
    client_.DeleteState(unneeded_.back(), {.deadline = kDeleteDeadline, .cancel = &cancel})
        .IgnoreError();
    if (!cancel.cancelled()) unneeded_.pop_back();
  }
}

int RunChat(const CommonFlags& common, const ChatFlags& flags) {
  LineEditor editor;  // made first, because the client starts threads
  Output output;
  absl::StatusOr<ClientOptions> options = MakeClientOptions(common);
  if (!options.ok()) return UsageError(options.status());
  options->deadline = ToMilliseconds(flags.deadline);
  CancelToken nothing;
  std::optional<Interrupt> signals(nothing);  // made before the client: see Interrupt
  const auto client = Client::Create(*std::move(options));
  signals.reset();
  if (!client.ok()) return UsageError(client.status());
  return Chat(**client, flags, output).Run(editor);
}

}  // namespace

Command AddChat(CLI::App& app, const CommonFlags& common) {
  auto flags = std::make_shared<ChatFlags>();
  app.footer(kHelp);
  app.add_option_function<std::string>(
      "--model", [flags](const std::string& model) { flags->request.set_model(model); },
      "Model; may be left out when the server has only one");
  CLI::Option* const previous =
      app.add_option("--previous", flags->previous, "Continue from this state")->type_name("ID");
  app.add_option_function<std::string>(
         "--ended-by",
         [flags](const std::string& text) { absl::CUnescape(text, &flags->ended_by); },
         "The stop string that ended the answer in this state, with \\n for a new line and the "
         "like; the chat that stored the state prints it")
      ->type_name("TEXT")
      ->needs(previous)
      ->check([](const std::string& text) {
        std::string unescaped;
        return absl::CUnescape(text, &unescaped) ? "" : absl::StrCat(text, ": a wrong escape");
      });
  app.add_flag("--raw", flags->raw,
               "Add lines to the text as they are, whatever the model's format");
  AddGenerationFlags(app, flags->request);
  app.get_option("--initial-state")->excludes("--previous");
  AddDeadline(app, flags->deadline);
  return [&common, flags] { return RunChat(common, *flags); };
}

}  // namespace aft::client
