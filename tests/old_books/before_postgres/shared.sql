--
-- PostgreSQL database dump
--


-- Dumped from database version 18.4
-- Dumped by pg_dump version 18.4

SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET transaction_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

--
-- Name: oldbooks_shared; Type: SCHEMA; Schema: -; Owner: -
--

CREATE SCHEMA oldbooks_shared;


--
-- Name: follow(); Type: FUNCTION; Schema: oldbooks_shared; Owner: -
--

CREATE FUNCTION oldbooks_shared.follow() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
DECLARE
    place text;
BEGIN
    SELECT value INTO place FROM oldbooks_shared.about WHERE name = 'moved';
    IF FOUND THEN
        RAISE EXCEPTION 'a ledger is append-only: this one was moved to %', place;
    END IF;
    IF NEW.sequence IS DISTINCT FROM (SELECT COALESCE(MAX(sequence), 0) + 1 FROM oldbooks_shared.entries) THEN
        RAISE EXCEPTION 'a ledger is append-only: an entry follows the last one';
    END IF;
    RETURN NEW;
END $$;


--
-- Name: refuse(); Type: FUNCTION; Schema: oldbooks_shared; Owner: -
--

CREATE FUNCTION oldbooks_shared.refuse() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE EXCEPTION 'a ledger is append-only: nothing in it is changed, deleted or truncated';
END $$;


--
-- Name: wait(); Type: FUNCTION; Schema: oldbooks_shared; Owner: -
--

CREATE FUNCTION oldbooks_shared.wait() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    LOCK TABLE oldbooks_shared.turn IN EXCLUSIVE MODE;
    RETURN NULL;
END $$;


SET default_tablespace = '';

SET default_table_access_method = heap;

--
-- Name: about; Type: TABLE; Schema: oldbooks_shared; Owner: -
--

CREATE TABLE oldbooks_shared.about (
    name text NOT NULL,
    value text NOT NULL
);


--
-- Name: entries; Type: TABLE; Schema: oldbooks_shared; Owner: -
--

CREATE TABLE oldbooks_shared.entries (
    sequence bigint NOT NULL,
    kind text NOT NULL,
    "time" text NOT NULL,
    body text NOT NULL,
    previous text NOT NULL,
    hash text NOT NULL,
    signature text NOT NULL,
    CONSTRAINT entries_sequence_check CHECK ((sequence >= 1))
);


--
-- Name: turn; Type: TABLE; Schema: oldbooks_shared; Owner: -
--

CREATE TABLE oldbooks_shared.turn (
);


--
-- Data for Name: about; Type: TABLE DATA; Schema: oldbooks_shared; Owner: -
--

INSERT INTO oldbooks_shared.about VALUES ('application', 'quietsum ledger');
INSERT INTO oldbooks_shared.about VALUES ('version', '1');


--
-- Data for Name: entries; Type: TABLE DATA; Schema: oldbooks_shared; Owner: -
--

INSERT INTO oldbooks_shared.entries VALUES (1, 'genesis', '2026-11-19T20:32:17.795351Z', '{"format":1,"ledger":"ea65d84fcd4687dcd21da3ab305c3afa","public_key":"73c7302e351d49149c72c38b06e9aaa6c526629eec9b61fc4b20c0fafdfcd9df"}', '0000000000000000000000000000000000000000000000000000000000000000', '5a91c6c2621e631318d1239916b9ca4dc941d3dcf3b3b983cc1c360ab6762312', 'aa9077145101ac1e4870ccd23ebec265006cba6b2fbcb0eded0a4c562eefb6517ffdbeaecb8842ed546d3a1ff7e8f7d69b1f21bf799f6bf8afee58e054dafa00');
INSERT INTO oldbooks_shared.entries VALUES (2, 'public', '2026-11-19T20:32:17.823513Z', '{"dataset":"uci-heart-cleveland","party":"cleveland","reason":"the UCI heart data is published, anyone may download it"}', '5a91c6c2621e631318d1239916b9ca4dc941d3dcf3b3b983cc1c360ab6762312', '6fc25397ec50cd540010a02ef1ad2f2c8714d2493b04ffebddbe0a2895bc9667', 'e9c3541d7af3a2206fbdef43aed545fbdb9a7b7bad9d6f49973a7bf3fbb15431a4e955be4e031f130f701b12e8a29338f5ded716da80fdc8efcd7550dd8bc504');
INSERT INTO oldbooks_shared.entries VALUES (3, 'public', '2026-11-19T20:32:17.824151Z', '{"dataset":"uci-heart-hungarian","party":"hungarian","reason":"the UCI heart data is published, anyone may download it"}', '6fc25397ec50cd540010a02ef1ad2f2c8714d2493b04ffebddbe0a2895bc9667', 'ab96432925155b7820031bd0995fd717133d2e6fb3fc28d275bf3ad05a9cf2e9', '8267c803d101d373ddc4e855027b85c54038d265681ddce35c54f9238b9b47ac03f7981092486289ffb2890752f4b35ab37d95d8756a02b41cc12ec9a2ec020c');
INSERT INTO oldbooks_shared.entries VALUES (4, 'public', '2026-11-19T20:32:17.824531Z', '{"dataset":"uci-heart-switzerland","party":"switzerland","reason":"the UCI heart data is published, anyone may download it"}', 'ab96432925155b7820031bd0995fd717133d2e6fb3fc28d275bf3ad05a9cf2e9', 'c93b1f8f14c27a44398c0c1f762d216f4a6be626ed494a12233b6969c86e0f6b', 'cf34d959d5923a4b2f7fe79f0f5d0d92483d19a78c3ee95cc58d980d9da8b3215cf20cff10ce9916f435c8d0a6168dd971e6f74ff179e564e9f1c9f67cb29a03');
INSERT INTO oldbooks_shared.entries VALUES (5, 'public', '2026-11-19T20:32:17.824848Z', '{"dataset":"uci-heart-va","party":"va","reason":"the UCI heart data is published, anyone may download it"}', 'c93b1f8f14c27a44398c0c1f762d216f4a6be626ed494a12233b6969c86e0f6b', 'b62dc4e78de42cb3b913fd2930835df299f4051f588b38ba684ae243409bdb85', 'cb64587f01504dcadb31ce780e139bcee48941760eda41baf3d1c5de5838052b790eb3a8520d369f9337cd72f7e2ee19c02dd1955a83da0578055fa626a9150a');
INSERT INTO oldbooks_shared.entries VALUES (6, 'run', '2026-11-19T20:32:17.825889Z', '{"datasets":[{"dataset":"uci-heart-cleveland","party":"cleveland","public":"the UCI heart data is published, anyone may download it","size":199},{"dataset":"uci-heart-hungarian","party":"hungarian","public":"the UCI heart data is published, anyone may download it","size":172},{"dataset":"uci-heart-switzerland","party":"switzerland","public":"the UCI heart data is published, anyone may download it","size":30},{"dataset":"uci-heart-va","party":"va","public":"the UCI heart data is published, anyone may download it","size":85}],"plan":{"aggregation":{"optimizer":{"average":0.0,"floor":0.001,"kind":"fedavg","learning_rate":1.0,"momentum":0.9,"second":0.99},"rule":"mean","secure":false},"federation":{"minimum_parties":1,"parties":[],"rounds":4,"sampling":{"kind":"everyone"},"simulate":{"drop_outs":0.0,"refusing":[],"stragglers":0.0},"spare_attempts":0,"split":"natural"},"privacy":{"accounting":"exact","neighbours":"add-or-remove-one","noise":"secure","record":{"delta":1e-05,"epsilon":1.0,"lifetime":{"delta":1e-05,"epsilon":20.0},"max_grad_norm":0.5},"style":"sample"},"schedule":[],"task":{"name":"heart","options":{}},"training":{"batches":"poisson","engine":"auto","local_steps":1,"optimizer":{"kind":"sgd","learning_rate":0.4,"momentum":0.0},"proximal":0.0,"sample_rate":0.25}},"plan_hash":"bda585fa7d5cd8f2f7331c1f221a237eae423ddc838bffd4b335107ad7aee725","planned":[{"dataset":"uci-heart-cleveland","event":{"event":{"event":{"kind":"gaussian","noise_multiplier":2.47214941905246},"kind":"poisson-sampled","rate":0.25},"kind":"repeated","times":4},"failure":1.7632415262334313e-37,"observers":["server","recipients"],"party":"cleveland","unit":"record"},{"dataset":"uci-heart-hungarian","event":{"event":{"event":{"kind":"gaussian","noise_multiplier":2.47214941905246},"kind":"poisson-sampled","rate":0.25},"kind":"repeated","times":4},"failure":1.7632415262334313e-37,"observers":["server","recipients"],"party":"hungarian","unit":"record"},{"dataset":"uci-heart-switzerland","event":{"event":{"event":{"kind":"gaussian","noise_multiplier":2.47214941905246},"kind":"poisson-sampled","rate":0.25},"kind":"repeated","times":4},"failure":1.7632415262334313e-37,"observers":["server","recipients"],"party":"switzerland","unit":"record"},{"dataset":"uci-heart-va","event":{"event":{"event":{"kind":"gaussian","noise_multiplier":2.47214941905246},"kind":"poisson-sampled","rate":0.25},"kind":"repeated","times":4},"failure":1.7632415262334313e-37,"observers":["server","recipients"],"party":"va","unit":"record"}],"pricing":3,"run":"finished","terms":{"accounting":"exact","limits":[{"delta":1e-05,"epsilon":1.0,"unit":"record"}],"neighbours":"add-or-remove-one"}}', 'b62dc4e78de42cb3b913fd2930835df299f4051f588b38ba684ae243409bdb85', '8ab2c89ea412a50780081291e820773c02c1da232a2a1626c1ed9bad81345f32', 'd7496b6608ce15beeb2962a47f2b325b89f6817648decc447a2bcc4317adc31163777a4e670f21463b9457ac0cf83284fe8da951292a00f4878bb62d2b244401');
INSERT INTO oldbooks_shared.entries VALUES (7, 'reserve', '2026-11-19T20:32:18.079707Z', '{"attempt":1,"charges":[{"dataset":"uci-heart-cleveland","event":{"event":{"event":{"kind":"gaussian","noise_multiplier":2.47214941905246},"kind":"poisson-sampled","rate":0.25},"kind":"repeated","times":1},"failure":4.408103815583578e-38,"observers":["server","recipients"],"party":"cleveland","unit":"record"},{"dataset":"uci-heart-hungarian","event":{"event":{"event":{"kind":"gaussian","noise_multiplier":2.47214941905246},"kind":"poisson-sampled","rate":0.25},"kind":"repeated","times":1},"failure":4.408103815583578e-38,"observers":["server","recipients"],"party":"hungarian","unit":"record"},{"dataset":"uci-heart-switzerland","event":{"event":{"event":{"kind":"gaussian","noise_multiplier":2.47214941905246},"kind":"poisson-sampled","rate":0.25},"kind":"repeated","times":1},"failure":4.408103815583578e-38,"observers":["server","recipients"],"party":"switzerland","unit":"record"},{"dataset":"uci-heart-va","event":{"event":{"event":{"kind":"gaussian","noise_multiplier":2.47214941905246},"kind":"poisson-sampled","rate":0.25},"kind":"repeated","times":1},"failure":4.408103815583578e-38,"observers":["server","recipients"],"party":"va","unit":"record"}],"round":1,"run":"finished"}', '8ab2c89ea412a50780081291e820773c02c1da232a2a1626c1ed9bad81345f32', 'cfb5d07b442fd53c2e347aff085ee0411f2a43f0932d51c779a2e52b17454772', '9ff6ea9ccba48db3ba6b7a7a183594e0fa9256686cb251fb27793f7dc0e935a277900e88561150a4db61ceecb0545fbf503137bb904d0fa4d9a8bfa8f7f4d505');
INSERT INTO oldbooks_shared.entries VALUES (8, 'commit', '2026-11-19T20:32:18.109680Z', '{"attempt":1,"operator_only":false,"reserve":7,"round":1,"run":"finished","spent":[{"delta":1e-05,"epsilon":0.5867407024022702,"party":"cleveland","unit":"record"},{"delta":1e-05,"epsilon":0.5867407024022702,"party":"hungarian","unit":"record"},{"delta":1e-05,"epsilon":0.5867407024022702,"party":"switzerland","unit":"record"},{"delta":1e-05,"epsilon":0.5867407024022702,"party":"va","unit":"record"}]}', 'cfb5d07b442fd53c2e347aff085ee0411f2a43f0932d51c779a2e52b17454772', '4bb4f92bd24894ba2770bee155f72316693851faabe664c06a4de1880f284108', '8a1d65fc8b55ff0756da073396008dd37a66cda47a2cdc6b441a957eee2333b8ac6ac34b4cbd0eab35d45846b34b6361672933f221f0ad87a6a0e16693670b07');
INSERT INTO oldbooks_shared.entries VALUES (9, 'reserve', '2026-11-19T20:32:18.297941Z', '{"attempt":1,"charges":[{"dataset":"uci-heart-cleveland","event":{"event":{"event":{"kind":"gaussian","noise_multiplier":2.47214941905246},"kind":"poisson-sampled","rate":0.25},"kind":"repeated","times":1},"failure":4.408103815583578e-38,"observers":["server","recipients"],"party":"cleveland","unit":"record"},{"dataset":"uci-heart-hungarian","event":{"event":{"event":{"kind":"gaussian","noise_multiplier":2.47214941905246},"kind":"poisson-sampled","rate":0.25},"kind":"repeated","times":1},"failure":4.408103815583578e-38,"observers":["server","recipients"],"party":"hungarian","unit":"record"},{"dataset":"uci-heart-switzerland","event":{"event":{"event":{"kind":"gaussian","noise_multiplier":2.47214941905246},"kind":"poisson-sampled","rate":0.25},"kind":"repeated","times":1},"failure":4.408103815583578e-38,"observers":["server","recipients"],"party":"switzerland","unit":"record"},{"dataset":"uci-heart-va","event":{"event":{"event":{"kind":"gaussian","noise_multiplier":2.47214941905246},"kind":"poisson-sampled","rate":0.25},"kind":"repeated","times":1},"failure":4.408103815583578e-38,"observers":["server","recipients"],"party":"va","unit":"record"}],"round":2,"run":"finished"}', '4bb4f92bd24894ba2770bee155f72316693851faabe664c06a4de1880f284108', '95a07391ed58ad24cc864e52455667f007b0396edbcd5ba2880df81af6edc156', '6f484d186248a149b2ab1b876ffc57c528463f01a519aa95ed77c7f4eb285d3199bf7b30e7fa3325f9eba462f8718a6dbf9c2a3124037b2ea39aca424f26c802');
INSERT INTO oldbooks_shared.entries VALUES (10, 'commit', '2026-11-19T20:32:18.325781Z', '{"attempt":1,"operator_only":false,"reserve":9,"round":2,"run":"finished","spent":[{"delta":1e-05,"epsilon":0.7551391786096011,"party":"cleveland","unit":"record"},{"delta":1e-05,"epsilon":0.7551391786096011,"party":"hungarian","unit":"record"},{"delta":1e-05,"epsilon":0.7551391786096011,"party":"switzerland","unit":"record"},{"delta":1e-05,"epsilon":0.7551391786096011,"party":"va","unit":"record"}]}', '95a07391ed58ad24cc864e52455667f007b0396edbcd5ba2880df81af6edc156', 'c0cfd16cdd1b32336dacd92200b8d3e422c07d73dae419cd8568d6c749cd9d27', 'd15a4151a64d09edce84bc910f33baddb387eb103e0eb17a49d0bd5eb4df7bf33e397e23270f768a5e34ba71237bf5a60bec7775813f67f4cf9712f90afa3a0b');
INSERT INTO oldbooks_shared.entries VALUES (11, 'reserve', '2026-11-19T20:32:18.461074Z', '{"attempt":1,"charges":[{"dataset":"uci-heart-cleveland","event":{"event":{"event":{"kind":"gaussian","noise_multiplier":2.47214941905246},"kind":"poisson-sampled","rate":0.25},"kind":"repeated","times":1},"failure":4.408103815583578e-38,"observers":["server","recipients"],"party":"cleveland","unit":"record"},{"dataset":"uci-heart-hungarian","event":{"event":{"event":{"kind":"gaussian","noise_multiplier":2.47214941905246},"kind":"poisson-sampled","rate":0.25},"kind":"repeated","times":1},"failure":4.408103815583578e-38,"observers":["server","recipients"],"party":"hungarian","unit":"record"},{"dataset":"uci-heart-switzerland","event":{"event":{"event":{"kind":"gaussian","noise_multiplier":2.47214941905246},"kind":"poisson-sampled","rate":0.25},"kind":"repeated","times":1},"failure":4.408103815583578e-38,"observers":["server","recipients"],"party":"switzerland","unit":"record"},{"dataset":"uci-heart-va","event":{"event":{"event":{"kind":"gaussian","noise_multiplier":2.47214941905246},"kind":"poisson-sampled","rate":0.25},"kind":"repeated","times":1},"failure":4.408103815583578e-38,"observers":["server","recipients"],"party":"va","unit":"record"}],"round":3,"run":"finished"}', 'c0cfd16cdd1b32336dacd92200b8d3e422c07d73dae419cd8568d6c749cd9d27', '5eed628753e44a4a5a526ddc7a8b1afb5c348b09cebda7494a68b3f975b80708', '96de5e3f985c0eeb5b1dc646f46566bacc1e5e249c747dc25c4b643a2a8eb33e2369c9addfdc294ababd5f23278f1d64f9aae55ad4f04c3248672eefd836940f');
INSERT INTO oldbooks_shared.entries VALUES (12, 'commit', '2026-11-19T20:32:18.471477Z', '{"attempt":1,"operator_only":false,"reserve":11,"round":3,"run":"finished","spent":[{"delta":1e-05,"epsilon":0.8870865303210463,"party":"cleveland","unit":"record"},{"delta":1e-05,"epsilon":0.8870865303210463,"party":"hungarian","unit":"record"},{"delta":1e-05,"epsilon":0.8870865303210463,"party":"switzerland","unit":"record"},{"delta":1e-05,"epsilon":0.8870865303210463,"party":"va","unit":"record"}]}', '5eed628753e44a4a5a526ddc7a8b1afb5c348b09cebda7494a68b3f975b80708', '0d9ec178f42fbfbf1e2e05b811ed7ff41c11d801a14829d01ef887e845740934', '4358e4b23f31c4e3903c6ae919995827787d5d1ae11adcc97525677791be77e56fc28a1bad5c831dfc0d6b68b615bd9040390dd1b6e81dbc5a68b7bfa693140e');
INSERT INTO oldbooks_shared.entries VALUES (13, 'reserve', '2026-11-19T20:32:18.673123Z', '{"attempt":1,"charges":[{"dataset":"uci-heart-cleveland","event":{"event":{"event":{"kind":"gaussian","noise_multiplier":2.47214941905246},"kind":"poisson-sampled","rate":0.25},"kind":"repeated","times":1},"failure":4.408103815583578e-38,"observers":["server","recipients"],"party":"cleveland","unit":"record"},{"dataset":"uci-heart-hungarian","event":{"event":{"event":{"kind":"gaussian","noise_multiplier":2.47214941905246},"kind":"poisson-sampled","rate":0.25},"kind":"repeated","times":1},"failure":4.408103815583578e-38,"observers":["server","recipients"],"party":"hungarian","unit":"record"},{"dataset":"uci-heart-switzerland","event":{"event":{"event":{"kind":"gaussian","noise_multiplier":2.47214941905246},"kind":"poisson-sampled","rate":0.25},"kind":"repeated","times":1},"failure":4.408103815583578e-38,"observers":["server","recipients"],"party":"switzerland","unit":"record"},{"dataset":"uci-heart-va","event":{"event":{"event":{"kind":"gaussian","noise_multiplier":2.47214941905246},"kind":"poisson-sampled","rate":0.25},"kind":"repeated","times":1},"failure":4.408103815583578e-38,"observers":["server","recipients"],"party":"va","unit":"record"}],"round":4,"run":"finished"}', '0d9ec178f42fbfbf1e2e05b811ed7ff41c11d801a14829d01ef887e845740934', 'bc17515e1a14f30275d58df4a35e5b1690b7f1245cdea61f4ed4566620829fd7', '9ee576bedf9df6cdd6bc784215f378c3db67c498d79748e794c140b882be4d5356501cfa4da67fdd04e446ecd529044f4c7dff9a7fce8fed6857c76aa6017e08');
INSERT INTO oldbooks_shared.entries VALUES (14, 'commit', '2026-11-19T20:32:18.693794Z', '{"attempt":1,"operator_only":false,"reserve":13,"round":4,"run":"finished","spent":[{"delta":1e-05,"epsilon":0.9999999343913952,"party":"cleveland","unit":"record"},{"delta":1e-05,"epsilon":0.9999999343913952,"party":"hungarian","unit":"record"},{"delta":1e-05,"epsilon":0.9999999343913952,"party":"switzerland","unit":"record"},{"delta":1e-05,"epsilon":0.9999999343913952,"party":"va","unit":"record"}]}', 'bc17515e1a14f30275d58df4a35e5b1690b7f1245cdea61f4ed4566620829fd7', '97d53aff73019d52c2ed13788d0e611d3c7f25cd88621e0ffc1bbb47aa733cb8', '76a6a4471269d4f11e88f9f784df9003f2fc01782ad5d6e1a651330a1c0e0f16b5720ce5f166d454c2520885e01a1e2c6e9d90ae2e4647066bc89afdebe24a0c');
INSERT INTO oldbooks_shared.entries VALUES (15, 'run', '2026-11-19T20:32:20.092938Z', '{"datasets":[{"dataset":"uci-heart-cleveland","party":"cleveland","public":"the UCI heart data is published, anyone may download it","size":199},{"dataset":"uci-heart-hungarian","party":"hungarian","public":"the UCI heart data is published, anyone may download it","size":172},{"dataset":"uci-heart-switzerland","party":"switzerland","public":"the UCI heart data is published, anyone may download it","size":30},{"dataset":"uci-heart-va","party":"va","public":"the UCI heart data is published, anyone may download it","size":85}],"plan":{"aggregation":{"optimizer":{"average":0.0,"floor":0.001,"kind":"fedavg","learning_rate":1.0,"momentum":0.9,"second":0.99},"rule":"mean","secure":false},"federation":{"minimum_parties":1,"parties":[],"rounds":12,"sampling":{"kind":"everyone"},"simulate":{"drop_outs":0.0,"refusing":[],"stragglers":0.0},"spare_attempts":0,"split":"natural"},"privacy":{"accounting":"exact","neighbours":"add-or-remove-one","noise":"secure","record":{"delta":1e-05,"epsilon":1.0,"lifetime":{"delta":1e-05,"epsilon":20.0},"max_grad_norm":0.5},"style":"sample"},"schedule":[],"task":{"name":"heart","options":{}},"training":{"batches":"poisson","engine":"auto","local_steps":1,"optimizer":{"kind":"sgd","learning_rate":0.4,"momentum":0.0},"proximal":0.0,"sample_rate":0.25}},"plan_hash":"494282e496fed1a02cf9daef5a0b00d01172887a2b0484969d0c5f41b4f85d16","planned":[{"dataset":"uci-heart-cleveland","event":{"event":{"event":{"kind":"gaussian","noise_multiplier":3.629993478556421},"kind":"poisson-sampled","rate":0.25},"kind":"repeated","times":12},"failure":5.289724578700294e-37,"observers":["server","recipients"],"party":"cleveland","unit":"record"},{"dataset":"uci-heart-hungarian","event":{"event":{"event":{"kind":"gaussian","noise_multiplier":3.629993478556421},"kind":"poisson-sampled","rate":0.25},"kind":"repeated","times":12},"failure":5.289724578700294e-37,"observers":["server","recipients"],"party":"hungarian","unit":"record"},{"dataset":"uci-heart-switzerland","event":{"event":{"event":{"kind":"gaussian","noise_multiplier":3.629993478556421},"kind":"poisson-sampled","rate":0.25},"kind":"repeated","times":12},"failure":5.289724578700294e-37,"observers":["server","recipients"],"party":"switzerland","unit":"record"},{"dataset":"uci-heart-va","event":{"event":{"event":{"kind":"gaussian","noise_multiplier":3.629993478556421},"kind":"poisson-sampled","rate":0.25},"kind":"repeated","times":12},"failure":5.289724578700294e-37,"observers":["server","recipients"],"party":"va","unit":"record"}],"pricing":3,"run":"stopped","terms":{"accounting":"exact","limits":[{"delta":1e-05,"epsilon":1.0,"unit":"record"}],"neighbours":"add-or-remove-one"}}', '97d53aff73019d52c2ed13788d0e611d3c7f25cd88621e0ffc1bbb47aa733cb8', 'f6c216eea0dc741eedb4ab5d220e6fee200fe4129da4b1cca66c7254792416e6', 'f764bfcb6a8ae1bf2ea1c67551619a3609c9e7b05f1393ccf4ea779afbc867f9573e86e6e9edbe79f92948d1e2be8f70bef827adc6ab0f87e11b24baed08b101');
INSERT INTO oldbooks_shared.entries VALUES (16, 'reserve', '2026-11-19T20:32:20.220946Z', '{"attempt":1,"charges":[{"dataset":"uci-heart-cleveland","event":{"event":{"event":{"kind":"gaussian","noise_multiplier":3.629993478556421},"kind":"poisson-sampled","rate":0.25},"kind":"repeated","times":1},"failure":4.408103815583578e-38,"observers":["server","recipients"],"party":"cleveland","unit":"record"},{"dataset":"uci-heart-hungarian","event":{"event":{"event":{"kind":"gaussian","noise_multiplier":3.629993478556421},"kind":"poisson-sampled","rate":0.25},"kind":"repeated","times":1},"failure":4.408103815583578e-38,"observers":["server","recipients"],"party":"hungarian","unit":"record"},{"dataset":"uci-heart-switzerland","event":{"event":{"event":{"kind":"gaussian","noise_multiplier":3.629993478556421},"kind":"poisson-sampled","rate":0.25},"kind":"repeated","times":1},"failure":4.408103815583578e-38,"observers":["server","recipients"],"party":"switzerland","unit":"record"},{"dataset":"uci-heart-va","event":{"event":{"event":{"kind":"gaussian","noise_multiplier":3.629993478556421},"kind":"poisson-sampled","rate":0.25},"kind":"repeated","times":1},"failure":4.408103815583578e-38,"observers":["server","recipients"],"party":"va","unit":"record"}],"round":1,"run":"stopped"}', 'f6c216eea0dc741eedb4ab5d220e6fee200fe4129da4b1cca66c7254792416e6', 'e6d65338b416e279b77fdc20f04c78cdaca7aeeef22f716854f6656e8e762081', '3dd0bfcc49a9447011666f5b9e44b418210da3981fa5064651c0d56684ab17e89dc67e9091fe0af92af641e8d5533c0481a9a80b2c44dd2430fdd9bb0dd15607');
INSERT INTO oldbooks_shared.entries VALUES (17, 'commit', '2026-11-19T20:32:20.235700Z', '{"attempt":1,"operator_only":false,"reserve":16,"round":1,"run":"stopped","spent":[{"delta":1e-05,"epsilon":0.32585642887043176,"party":"cleveland","unit":"record"},{"delta":1e-05,"epsilon":0.32585642887043176,"party":"hungarian","unit":"record"},{"delta":1e-05,"epsilon":0.32585642887043176,"party":"switzerland","unit":"record"},{"delta":1e-05,"epsilon":0.32585642887043176,"party":"va","unit":"record"}]}', 'e6d65338b416e279b77fdc20f04c78cdaca7aeeef22f716854f6656e8e762081', 'af820311debca058576b39eca5000470f58d25d2d4bc5c7d3763bf05f4ef109f', '03092b0535a16e531f48c80cb64af7d7cef9c3d1101d0fc5a058e3f8567f95afd2b9482bbba24d79f9586a3b4ec0595a34288186c6636990f4d9ff0f59d2c708');
INSERT INTO oldbooks_shared.entries VALUES (18, 'reserve', '2026-11-19T20:32:20.355517Z', '{"attempt":1,"charges":[{"dataset":"uci-heart-cleveland","event":{"event":{"event":{"kind":"gaussian","noise_multiplier":3.629993478556421},"kind":"poisson-sampled","rate":0.25},"kind":"repeated","times":1},"failure":4.408103815583578e-38,"observers":["server","recipients"],"party":"cleveland","unit":"record"},{"dataset":"uci-heart-hungarian","event":{"event":{"event":{"kind":"gaussian","noise_multiplier":3.629993478556421},"kind":"poisson-sampled","rate":0.25},"kind":"repeated","times":1},"failure":4.408103815583578e-38,"observers":["server","recipients"],"party":"hungarian","unit":"record"},{"dataset":"uci-heart-switzerland","event":{"event":{"event":{"kind":"gaussian","noise_multiplier":3.629993478556421},"kind":"poisson-sampled","rate":0.25},"kind":"repeated","times":1},"failure":4.408103815583578e-38,"observers":["server","recipients"],"party":"switzerland","unit":"record"},{"dataset":"uci-heart-va","event":{"event":{"event":{"kind":"gaussian","noise_multiplier":3.629993478556421},"kind":"poisson-sampled","rate":0.25},"kind":"repeated","times":1},"failure":4.408103815583578e-38,"observers":["server","recipients"],"party":"va","unit":"record"}],"round":2,"run":"stopped"}', 'af820311debca058576b39eca5000470f58d25d2d4bc5c7d3763bf05f4ef109f', 'a42a66f87289014a62ca5e36e0280050d46a51235c5fcf94e4c770a66911c902', 'f7ef06edfcd5c815f3dfd6a9f14d5b23f68857b8573b634f56cd0dffa3c9356f9aec9b87020be6908ef30119589492edfd57eea8031e9ee877ded740a420e807');
INSERT INTO oldbooks_shared.entries VALUES (19, 'commit', '2026-11-19T20:32:20.379901Z', '{"attempt":1,"operator_only":false,"reserve":18,"round":2,"run":"stopped","spent":[{"delta":1e-05,"epsilon":0.4340184892633186,"party":"cleveland","unit":"record"},{"delta":1e-05,"epsilon":0.4340184892633186,"party":"hungarian","unit":"record"},{"delta":1e-05,"epsilon":0.4340184892633186,"party":"switzerland","unit":"record"},{"delta":1e-05,"epsilon":0.4340184892633186,"party":"va","unit":"record"}]}', 'a42a66f87289014a62ca5e36e0280050d46a51235c5fcf94e4c770a66911c902', '36103c92db261b54afea7d7e28b82620984ffc4019db16cd07e89db1d29344bb', 'e5232846393fa7a7a1d01a4622f40ed710c8cdcf76a6b7e34a1173547e6bd038373a268ebdecc1592e397969ce0ce9f758ff98f852b3f516f71455ebf8be3a0b');


--
-- Data for Name: turn; Type: TABLE DATA; Schema: oldbooks_shared; Owner: -
--



--
-- Name: about about_pkey; Type: CONSTRAINT; Schema: oldbooks_shared; Owner: -
--

ALTER TABLE ONLY oldbooks_shared.about
    ADD CONSTRAINT about_pkey PRIMARY KEY (name);


--
-- Name: entries entries_pkey; Type: CONSTRAINT; Schema: oldbooks_shared; Owner: -
--

ALTER TABLE ONLY oldbooks_shared.entries
    ADD CONSTRAINT entries_pkey PRIMARY KEY (sequence);


--
-- Name: entries entries_are_never_changed; Type: TRIGGER; Schema: oldbooks_shared; Owner: -
--

CREATE TRIGGER entries_are_never_changed BEFORE DELETE OR UPDATE OR TRUNCATE ON oldbooks_shared.entries FOR EACH STATEMENT EXECUTE FUNCTION oldbooks_shared.refuse();

ALTER TABLE oldbooks_shared.entries ENABLE ALWAYS TRIGGER entries_are_never_changed;


--
-- Name: entries entries_follow_each_other; Type: TRIGGER; Schema: oldbooks_shared; Owner: -
--

CREATE TRIGGER entries_follow_each_other BEFORE INSERT ON oldbooks_shared.entries FOR EACH ROW EXECUTE FUNCTION oldbooks_shared.follow();

ALTER TABLE oldbooks_shared.entries ENABLE ALWAYS TRIGGER entries_follow_each_other;


--
-- Name: entries entries_wait_for_their_turn; Type: TRIGGER; Schema: oldbooks_shared; Owner: -
--

CREATE TRIGGER entries_wait_for_their_turn BEFORE INSERT ON oldbooks_shared.entries FOR EACH STATEMENT EXECUTE FUNCTION oldbooks_shared.wait();

ALTER TABLE oldbooks_shared.entries ENABLE ALWAYS TRIGGER entries_wait_for_their_turn;


--
-- Name: about what_is_said_stays; Type: TRIGGER; Schema: oldbooks_shared; Owner: -
--

CREATE TRIGGER what_is_said_stays BEFORE DELETE OR UPDATE OR TRUNCATE ON oldbooks_shared.about FOR EACH STATEMENT EXECUTE FUNCTION oldbooks_shared.refuse();

ALTER TABLE oldbooks_shared.about ENABLE ALWAYS TRIGGER what_is_said_stays;


--
-- PostgreSQL database dump complete
--


