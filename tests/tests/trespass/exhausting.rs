//! A client that wants every queue pair there is: it gets as many as one session may
//! have, is told so, and whatever it asks for, the device never has more of the
//! server's than twice that while old ones end. Others find theirs.

use crate::*;

/// Queue pairs of one session.
const QPS_MAX: u16 = 4;

/// Links that are asked for without waiting for an answer.
const FLOOD: u16 = 120;

/// The queue pairs of all devices, as the kernel counts them.
fn queue_pairs() -> usize {
    verbatim_tests::holding::Devices::now().of("qp") as usize
}

#[test]
#[ignore = "needs an RDMA device; run tests/softroce/run"]
fn a_client_cannot_use_up_queue_pairs() {
    let pair = Pair::set(Backend::Verbs, |config| config.rdma.qps = QPS_MAX.into());
    let before = queue_pairs();
    let most = std::cell::Cell::new(0);
    beside_an_honest_client(&pair, || {
        let mut rude = Rude::connect(&pair);
        let link = |index, epoch| LinkId { index, epoch };
        let kept: Vec<_> =
            (0..QPS_MAX).map(|index| rude.attach(link(index, 0)).expect("a link")).collect();
        let refused = rude.attach(link(QPS_MAX, 0)).err().expect("one too many");
        assert_eq!(refused.code, Code::Limit);
        assert_eq!(refused.text, format!("a session may have {QPS_MAX} queue pairs (rdma.qps)"));
        // Names that are used over and over, and nobody waits until the old ones are gone.
        let endpoint = VerbsEndpoint::new(&rude.domain, &rude.place, Options::default());
        let endpoint = endpoint.expect("an endpoint");
        let address = endpoint.address().to_bytes().to_vec();
        for number in 0..FLOOD {
            let link = link(number % QPS_MAX, 1 + number / QPS_MAX);
            let offer = LinkOffer::Verbs { address: address.clone() };
            rude.say(ClientMessage::Attach { link, offer });
        }
        let mut made = 0;
        for number in 0..FLOOD {
            made += rude.hear("answer", |message| match message {
                ServerMessage::Attached { answer: Ok(_), .. } => Some(1),
                ServerMessage::Attached { answer: Err(fault), .. } => {
                    assert_eq!(fault.code, Code::Limit, "{fault}");
                    Some(0)
                }
                _ => None,
            });
            if number % 8 == 0 {
                most.set(most.get().max(queue_pairs()));
            }
        }
        assert!(made > 0, "none was made");
        drop((kept, endpoint));
    });
    // Its own and the endpoint; the server's and those that end; both ends of the honest copy.
    let allowed = usize::from(QPS_MAX) + 1 + 2 * usize::from(QPS_MAX) + 2 * 2;
    let seen = most.get() - before;
    assert!(seen <= allowed, "{seen} queue pairs, where {allowed} may be");
    assert!(seen >= usize::from(QPS_MAX), "it was looked at: {seen}");
}
