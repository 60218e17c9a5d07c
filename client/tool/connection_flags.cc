#include "client/tool/connection_flags.h"

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/read_file.h"
#include "base/status_macros.h"

namespace aft::client {
namespace {

// Returns "" if no file is named. An empty file is an error, because "" stands for the default.
absl::StatusOr<std::string> ReadIfNamed(const std::string& path) {
  if (path.empty()) return "";
  AFT_ASSIGN_OR_RETURN(std::string text, ReadFile(path));
  if (absl::StripAsciiWhitespace(text).empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is empty"));
  }
  return text;
}

}  // namespace

void AddConnectionFlags(CLI::App& app, ConnectionFlags& flags) {
  app.add_option("--address", flags.address,
                 "Address of the server, HOST:PORT; of several servers, ipv4:HOST:PORT,HOST:PORT")
      ->envname("AFT_ADDRESS")
      ->capture_default_str();
  CLI::Option* const tls = app.add_flag("--tls", flags.tls, "Connect with TLS");
  app.add_option(
         "--ca", flags.ca,
         "File with the authorities (PEM) for the server's certificate; default: the system's")
      ->needs(tls);
  CLI::Option* const cert =
      app.add_option("--cert", flags.cert, "File with this client's certificate (PEM), for mTLS")
          ->needs(tls);
  CLI::Option* const key =
      app.add_option("--key", flags.key, "File with the private key (PEM) of --cert")->needs(cert);
  cert->needs(key);
  app.add_option("--token-file", flags.token_file,
                 "File with the token that identifies this client")
      ->envname("AFT_TOKEN_FILE");
}

absl::StatusOr<ClientOptions> MakeClientOptions(const ConnectionFlags& flags) {
  ClientOptions options;
  options.address = flags.address;
  if (flags.tls) {
    ClientTls& tls = options.tls.emplace();
    AFT_ASSIGN_OR_RETURN(tls.authorities, ReadIfNamed(flags.ca));
    AFT_ASSIGN_OR_RETURN(tls.certificate, ReadIfNamed(flags.cert));
    AFT_ASSIGN_OR_RETURN(tls.key, ReadIfNamed(flags.key));
  }
  AFT_ASSIGN_OR_RETURN(std::string token, ReadIfNamed(flags.token_file));
  options.token = std::string(absl::StripAsciiWhitespace(token));
  return options;
}

}  // namespace aft::client
