//! The server's door: TLS, the client's greeting, and whether its proof lets it
//! in, all under one deadline. Owns that verdict. Never welcomes: the caller does,
//! once it has a place for the session. Never limits how many knock at once; that
//! is the caller's too. `rdma-serve` calls it for every control connection.

use crate::{
    Authority, AuthorizedKeys, ControlError, Named, PublicKey, Receiver, Sender, ServerIdentity,
    Token, Tokens, tls, unix_now,
};
use std::{
    fmt,
    net::SocketAddr,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};
use tokio_rustls::TlsAcceptor;
use verbatim_proto::{
    ClientMessage, Code, Fault, ServerMessage,
    message::{Hello, Proof},
    units::{FRAME_BYTES_MAX, GREETING_BYTES_MAX},
};

/// Whom a server lets in.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The keys that may come in, each with its name.
    pub authorized: AuthorizedKeys,
    /// The tokens that may come in.
    pub tokens: Tokens,
    /// The key of the local door, if there is one.
    pub local: Option<PublicKey>,
    /// Whether an authority vouches for clients that show a certificate.
    pub certificates: bool,
    /// Whether those may come in who prove no key of these.
    pub allow_anonymous: bool,
    /// How long a client may take from the first byte to its greeting.
    pub deadline: Duration,
}

impl Policy {
    /// Decides who a client is; the text of a refusal goes to both ends.
    ///
    /// The signature comes first, so that only its holder learns whether a key is known.
    fn identify(
        &self,
        proof: Option<&Proof>,
        exporter: &[u8],
        shown: Option<Option<Named>>,
        now: u64,
    ) -> Result<Who, String> {
        let key = proof.map(|proof| PublicKey(proof.key));
        if let (Some(proof), Some(key)) = (proof, key)
            && !key.verify(exporter, &proof.signature)
        {
            return Err(format!("the signature by {key} is not of this connection"));
        }
        let Some(key) = key else {
            match shown {
                Some(Some(named)) if named.is_over(now) => return Err(ended(&named.name)),
                Some(Some(named)) => return Ok(Who::Certificate(Arc::new(named))),
                Some(None) => return Err("the client's certificate has no DNS name in it".into()),
                None => {}
            }
            let none = || "no key was offered, and this server asks for one".to_owned();
            return self.allow_anonymous.then_some(Who::Anonymous).ok_or_else(none);
        };
        if Some(key) == self.local {
            return Ok(Who::Local);
        }
        if let Some(name) = self.authorized.find(&key) {
            return Ok(Who::Key(name.to_owned(), key));
        }
        match self.tokens.find(&key) {
            Some(token) if token.is_over(now) => Err(over(&token.name)),
            Some(token) => Ok(Who::Token(Arc::new(token.clone()))),
            None if self.allow_anonymous => Ok(Who::Anonymous),
            None => Err(format!("the key {key} is not authorized here")),
        }
    }

    /// Decides whether somebody who came in earlier may stay; the text says why not.
    pub fn standing(&self, who: &Who, now: u64) -> Result<(), String> {
        match who {
            Who::Local | Who::Anonymous => Ok(()),
            Who::Certificate(named) if named.is_over(now) => Err(ended(&named.name)),
            Who::Certificate(_) => Ok(()),
            // Exports are for names: one that changed is somebody else there.
            Who::Key(name, key) => match self.authorized.find(key) {
                Some(same) if same == name => Ok(()),
                Some(other) => Err(format!("the key of {name} is called {other} now")),
                None => Err(format!("the key of {name} is no longer authorized")),
            },
            Who::Token(token) if token.is_over(now) => Err(over(&token.name)),
            Who::Token(token) => match self.tokens.find(&token.key) {
                Some(same) if same == &**token => Ok(()),
                Some(_) => Err(format!("the token {} was changed", token.name)),
                None => Err(format!("the token {} was revoked", token.name)),
            },
        }
    }

    /// Returns whether anybody but the user of the server can prove who they are.
    pub fn has_keys(&self) -> bool {
        !self.authorized.is_empty() || !self.tokens.is_empty() || self.certificates
    }
}

fn ended(name: &str) -> String {
    format!("the certificate of {name} has expired")
}

fn over(name: &str) -> String {
    format!("the token {name} has expired")
}

impl Default for Policy {
    /// Lets nobody in, and waits 10 s for them.
    fn default() -> Self {
        Self {
            authorized: AuthorizedKeys::default(),
            tokens: Tokens::default(),
            local: None,
            certificates: false,
            allow_anonymous: false,
            deadline: Duration::from_secs(10),
        }
    }
}

/// Who a client proved to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// The user of the server, on the same machine.
    Local,
    /// The holder of the authorized key of this name.
    Key(String, PublicKey),
    /// The holder of this token.
    Token(Arc<Token>),
    /// Whom a certificate names.
    Certificate(Arc<Named>),
    /// Nobody in particular.
    Anonymous,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::Key(name, _) => f.write_str(name),
            Self::Token(token) => f.write_str(&token.name),
            Self::Certificate(named) => write!(f, "cert:{}", named.name),
            Self::Anonymous => f.write_str("anonymous"),
        }
    }
}

/// A client that is let in and waits for its welcome.
#[derive(Debug)]
pub struct Accepted {
    /// To the client; the first message must be `Welcome` or `Refused`.
    pub sender: Sender<ServerMessage>,
    /// From the client.
    pub receiver: Receiver<ClientMessage>,
    /// What it said; the proof in it is checked, the chunk size is not.
    pub hello: Hello,
    /// Who it is.
    pub who: Who,
    /// What both ends call this session in their logs.
    pub request: String,
}

/// Lets clients in, as one identity under one policy.
pub struct Acceptor {
    tls: TlsAcceptor,
    data: TlsAcceptor,
    policy: RwLock<Arc<Policy>>,
}

impl Acceptor {
    /// Makes an acceptor.
    pub fn new(identity: &ServerIdentity, policy: Policy) -> Result<Self, ControlError> {
        Self::with_authority(identity, None, policy)
    }

    /// Makes an acceptor that also lets in whom an authority vouches for.
    pub fn with_authority(
        identity: &ServerIdentity,
        authority: Option<&Authority>,
        policy: Policy,
    ) -> Result<Self, ControlError> {
        let config = tls::server_config(identity, authority)?;
        let policy = Policy { certificates: authority.is_some(), ..policy };
        let policy = RwLock::new(Arc::new(policy));
        let data = TlsAcceptor::from(Arc::new(tls::data_config(&config)));
        Ok(Self { tls: TlsAcceptor::from(Arc::new(config)), data, policy })
    }

    /// Returns what shakes hands on data connections.
    pub(crate) fn data_tls(&self) -> &TlsAcceptor {
        &self.data
    }

    /// Returns whom it lets in now.
    pub fn policy(&self) -> Arc<Policy> {
        self.policy.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Lets in by another policy from now on; who is inside stays until asked to leave.
    pub fn change_policy(&self, policy: Arc<Policy>) {
        *self.policy.write().unwrap_or_else(PoisonError::into_inner) = policy;
    }

    /// Shakes hands with a client and hears its greeting, within the policy's deadline.
    ///
    /// A client that is refused is told so, and then hung up on; the error says the same.
    pub async fn accept<S>(&self, stream: S) -> Result<Accepted, ControlError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let deadline = self.policy().deadline;
        timeout(deadline, self.greeted(stream)).await.unwrap_or_else(|_| {
            let what = "the client's greeting".into();
            Err(ControlError::TimedOut { what, seconds: deadline.as_secs_f64() })
        })
    }

    async fn greeted<S>(&self, stream: S) -> Result<Accepted, ControlError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let stream = self.tls.accept(stream).await.map_err(|e| tls::failed(PEER, &e))?;
        let (_, session) = stream.get_ref();
        tls::check_version(PEER, session.alpn_protocol())?;
        let exporter = tls::exporter(PEER, session)?;
        let request = tls::request_id(PEER, session)?;
        let shown = session.peer_certificates().and_then(<[_]>::first).map(Named::of);
        let (read, write) = tokio::io::split(stream);
        let sender = Sender::new(write);
        let mut receiver = Receiver::new(read);
        receiver.limit(GREETING_BYTES_MAX);
        let hello = match receiver.recv().await? {
            Some(ClientMessage::Hello(hello)) => hello,
            Some(_) => {
                let text = "the client did not greet first";
                return refuse(sender, Fault::new(Code::Protocol, text)).await;
            }
            None => {
                let cause = "the client hung up before its greeting".into();
                return Err(ControlError::Closed { cause });
            }
        };
        // It goes to the log of the server, so it has to fit there.
        if hello.agent.len() > AGENT_BYTES_MAX || hello.agent.contains(char::is_control) {
            let text = "the client's program has no proper name";
            return refuse(sender, Fault::new(Code::Protocol, text)).await;
        }
        match self.policy().identify(hello.proof.as_ref(), &exporter, shown, unix_now()) {
            Ok(who) => {
                receiver.limit(FRAME_BYTES_MAX);
                Ok(Accepted { sender, receiver, hello, who, request })
            }
            Err(text) => refuse(sender, Fault::new(Code::NotAuthenticated, text)).await,
        }
    }
}

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acceptor").field("policy", &self.policy()).finish_non_exhaustive()
    }
}

/// Checks that a server does not listen for other machines with nothing to tell friend from foe.
pub fn check_listen(
    address: &SocketAddr,
    has_keys: bool,
    insecure_no_auth: bool,
) -> Result<(), ControlError> {
    if address.ip().to_canonical().is_loopback() || has_keys || insecure_no_auth {
        return Ok(());
    }
    Err(ControlError::Local {
        what: format!("cannot listen on {address}"),
        cause: "other machines can reach it, and there is no key or token to come in with".into(),
        hint: Some(
            "make a token with rdma-token add, authorize a key, listen on 127.0.0.1, or let \
             everybody in with --insecure-no-auth"
                .into(),
        ),
    })
}

/// Tells a client why it may not come in, and hangs up.
async fn refuse<T>(mut sender: Sender<ServerMessage>, fault: Fault) -> Result<T, ControlError> {
    let told = async {
        sender.send(&ServerMessage::Refused(fault.clone())).await?;
        sender.close().await
    };
    if let Err(error) = told.await {
        tracing::debug!(%error, "refusal not delivered");
    }
    Err(ControlError::Refused(fault))
}

/// The longest name a client may give its program, in bytes.
const AGENT_BYTES_MAX: usize = 256;

/// How the other end is called here; the caller's log knows its address.
const PEER: &str = "the client";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClientKey;

    /// A policy with one authorized key and one token that ends at 100; and both.
    fn world() -> (Policy, ClientKey, ClientKey) {
        let (alice, bob) = (ClientKey::generate().unwrap(), ClientKey::generate().unwrap());
        let mut policy = Policy::default();
        policy.authorized.insert("alice", alice.public());
        let grants = vec!["data:ro".parse().unwrap()];
        policy.tokens.insert(Token::new("bob", bob.public(), grants, Some(100)).unwrap());
        (policy, alice, bob)
    }

    fn proof(key: &ClientKey) -> Proof {
        Proof { key: key.public().0, signature: key.sign(b"exporter") }
    }

    #[test]
    fn a_token_comes_in_until_it_is_over() {
        let (policy, alice, bob) = world();
        let at = |key: &ClientKey, now| policy.identify(Some(&proof(key)), b"exporter", None, now);
        assert!(matches!(at(&alice, 1000), Ok(Who::Key(name, _)) if name == "alice"));
        assert!(matches!(at(&bob, 99), Ok(Who::Token(token)) if token.name == "bob"));
        assert_eq!(at(&bob, 100), Err("the token bob has expired".into()));
        let open = Policy { allow_anonymous: true, ..policy.clone() };
        let late = open.identify(Some(&proof(&bob)), b"exporter", None, 100);
        assert!(late.is_err(), "an old token is said to be old, also where anybody may come in");
        assert_eq!(open.identify(None, b"", None, 0), Ok(Who::Anonymous));
    }

    #[test]
    fn who_is_inside_stays_as_long_as_what_it_came_with() {
        let (policy, alice, bob) = world();
        let enter =
            |key: &ClientKey| policy.identify(Some(&proof(key)), b"exporter", None, 0).unwrap();
        let (alice, bob) = (enter(&alice), enter(&bob));
        assert_eq!(policy.standing(&alice, 1000), Ok(()));
        assert_eq!(policy.standing(&bob, 99), Ok(()));
        assert!(policy.standing(&bob, 100).unwrap_err().contains("expired"));

        let emptied = Policy::default();
        assert!(emptied.standing(&alice, 0).unwrap_err().contains("no longer authorized"));
        assert!(emptied.standing(&bob, 0).unwrap_err().contains("was revoked"));
        assert_eq!(emptied.standing(&Who::Local, 0), Ok(()));
        assert_eq!(emptied.standing(&Who::Anonymous, 0), Ok(()));

        let mut renamed = Policy::default();
        let Who::Key(_, key) = &alice else { panic!("it came with a key") };
        renamed.authorized.insert("eve", *key);
        assert!(renamed.standing(&alice, 0).unwrap_err().contains("is called eve now"));

        let Who::Token(token) = &bob else { panic!("it came with a token") };
        let mut changed = Policy::default();
        changed.tokens.insert(Token { expires: None, ..(**token).clone() });
        assert!(changed.standing(&bob, 0).unwrap_err().contains("was changed"));
    }

    #[test]
    fn a_certificate_comes_in_and_stays_until_it_ends() {
        let policy = Policy { certificates: true, ..Policy::default() };
        let named = Named { name: "node7".into(), ends: Some(100) };
        let at = |now| policy.identify(None, b"", Some(Some(named.clone())), now);
        let who = at(99).unwrap();
        assert_eq!(who.to_string(), "cert:node7");
        assert_eq!(at(100), Err("the certificate of node7 has expired".into()));
        assert_eq!(policy.standing(&who, 99), Ok(()));
        assert!(policy.standing(&who, 100).unwrap_err().contains("node7 has expired"));
        assert!(policy.identify(None, b"", Some(None), 0).unwrap_err().contains("no DNS name"));
        assert!(policy.identify(None, b"", None, 0).is_err(), "nothing is shown");
    }
}
